"""Run a throwaway PostgreSQL server on a free loopback port, for the tests marked `cluster`."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

DEBIAN = Path("/usr/lib/postgresql")
"""Debian installs each version of the server here and not on the PATH."""
USER = "vitals"


def program(name: str) -> str:
    """Return the path of a program of the server: from the PATH, else Debian's newest version."""
    versions = sorted(DEBIAN.glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    found = shutil.which(name) or (str(versions[-1]) if versions else None)
    assert found, f"there is no {name}: install a PostgreSQL server (on Debian: apt-get install postgresql)"
    return found


class Server:
    """A server with its data in `folder`. PostgreSQL refuses to run as root, so root starts it as user `nobody`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # no variables of the test, because tests find our processes by their variables
        self._as: dict[str, Any] = {"cwd": folder, "env": {"PATH": os.defpath}}
        if os.getuid() == 0:
            self._as |= {"user": "nobody", "group": "nogroup", "extra_groups": []}
            shutil.chown(folder, "nobody", "nogroup")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        made = ["-D", "data", "-U", USER, "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]
        subprocess.run([program("initdb"), *made], check=True, stdout=subprocess.DEVNULL, **self._as)
        self.start()

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        options = ["-c", "fsync=off", "-c", f"unix_socket_directories={self._folder}", "-h", "127.0.0.1"]
        command = [program("postgres"), "-D", "data", *options, "-p", str(self.port)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._as)
        deadline = time.monotonic() + 60
        while True:
            try:
                return self.execute("SELECT 1")
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self._folder / "log").read_text()
                time.sleep(0.1)

    @property
    def running(self) -> bool:
        """Return whether the server's process is alive."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Stop the server at once: SIGINT ends the sessions of clients, SIGTERM would wait for them."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(30)

    def execute(self, statement: str, database: str = "postgres") -> None:
        """Run a statement as the superuser."""
        url = f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]

    def new_database(self) -> str:
        """Return the URL of a new, empty database."""
        name = uuid.uuid4().hex
        self.execute(f'CREATE DATABASE "{name}"')
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{name}"


@contextmanager
def server() -> Iterator[Server]:
    """Run a server, and delete its files afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="vitals-pg-"))  # not below tmp_path, which user `nobody` may not enter
    try:
        running = Server(folder)
        try:
            yield running
        finally:
            running.stop()
    finally:
        shutil.rmtree(folder)
