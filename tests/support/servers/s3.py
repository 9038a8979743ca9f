"""Run an S3 server on a free loopback port, for the tests marked `cluster`. It can be stopped and restarted."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
from moto.server import ThreadedMotoServer

from tests.support.servers.ray import free_port


class Bucket:
    """A server with one bucket. The bucket keeps its objects while the server is stopped."""

    url = "s3://vitals/runs"

    def __init__(self) -> None:
        self._port = free_port()
        self.variables = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}",
            "AWS_ACCESS_KEY_ID": "a-test",
            "AWS_SECRET_ACCESS_KEY": "a-secret-of-a-test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self.start()

    def start(self) -> None:
        """Start the server, or start it again."""
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self._port, verbose=False)
        self._server.start()

    def stop(self) -> None:
        """Stop the server. Connections are refused."""
        self._server.stop()


@contextmanager
def bucket() -> Iterator[Bucket]:
    """Run a server with an empty bucket."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    running = Bucket()
    names = ("endpoint_url", "aws_access_key_id", "aws_secret_access_key", "region_name")
    boto3.client("s3", **dict(zip(names, running.variables.values(), strict=True))).create_bucket(Bucket="vitals")
    try:
        yield running
    finally:
        running.stop()
