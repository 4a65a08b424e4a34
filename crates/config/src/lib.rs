//! Options declared once, and a server's published read-only configuration.
