//! The rollout driver: prompts to the gateway, rewarded samples back.
