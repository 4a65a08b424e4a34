"""Starts `rollscope` servers as separate processes and stops them, by their own ids."""

import os
import re
import signal
import subprocess
import sys
import threading

READY_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60


class Server:
    """One running `rollscope` server; `url` is where it said that it is ready."""

    def __init__(self, *args):
        self.name = args[0]
        # A closed pipe ends the server even if this process dies without a word.
        self.process = subprocess.Popen(
            [os.environ["ROLLSCOPE"], *args, "--exit-on-stdin-close"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        ready = threading.Event()
        self.url = None

        def read():
            for line in self.process.stdout:
                match = re.fullmatch(r"rollscope \w+ ready on (http://\S+)", line.strip())
                if match:
                    self.url = match[1]
                    ready.set()
            ready.set()

        threading.Thread(target=read, daemon=True).start()
        ready.wait(READY_TIMEOUT_S)
        if self.url is None:
            self.kill()
            raise AssertionError(f"no ready line from: rollscope {' '.join(args)}")

    def stop(self):
        """Asks the server to end; it drains and ends with 0."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(STOP_TIMEOUT_S)
        assert code == 0, f"{self.name} ended with {code} after SIGTERM"

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Servers:
    """All servers of a check; none outlives it."""

    def __init__(self):
        self.running = []

    def start(self, *args):
        server = Server(*args)
        self.running.append(server)
        return server

    def stop(self):
        """Stops the last started first: the gateway before the engines that it uses."""
        while self.running:
            server = self.running.pop()
            try:
                server.stop()
            finally:
                server.kill()

    def kill(self):
        """Ends all at once, whatever they are doing."""
        while self.running:
            self.running.pop().kill()

    def __enter__(self):
        # Being told to end must unwind, or the servers would be left behind.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        return self

    def __exit__(self, *_):
        for server in reversed(self.running):
            server.kill()
