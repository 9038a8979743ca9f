"""A throwaway PostgreSQL server, where the machine has one."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

ABSENT = "no postgres and initdb on this machine: the store is tested on SQLite alone"


def installed() -> bool:
    """Whether a server can be started."""
    return all(shutil.which(name) for name in ("postgres", "initdb"))


@contextmanager
def server() -> Iterator[str]:
    """The URL of a fresh server, without the name of a database; it refuses to run as root, so then it does not."""
    user: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="vitals-pg-"))  # not below tmp_path, which only its owner may enter
    try:
        if user:
            shutil.chown(folder, "nobody", "nogroup")
        data, port = folder / "data", _free_port()
        initdb = ["initdb", "-D", str(data), "-U", "vitals", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd=folder, **user)
        options = ["-c", "fsync=off", "-c", f"unix_socket_directories={folder}", "-h", "127.0.0.1", "-p", str(port)]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                ["postgres", "-D", str(data), *options], stdout=log, stderr=log, cwd=folder, **user
            )
        try:
            _wait(port)
            yield f"postgresql+psycopg://vitals@127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGINT)  # ends clients' sessions, where SIGTERM would wait for them
            process.wait(30)
    finally:
        shutil.rmtree(folder)


def new_database(url: str, name: str) -> str:
    """The URL of an empty database on a server."""
    with psycopg.connect(f"{url.replace('+psycopg', '')}/postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')  # type: ignore[arg-type]
    return f"{url}/{name}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(f"postgresql://vitals@127.0.0.1:{port}/postgres").close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
