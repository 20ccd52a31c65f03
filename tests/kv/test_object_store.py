"""The example of a driver of one's own, against the contract, over a real HTTP server."""

from __future__ import annotations

import http.server
import importlib.util
import sys
import threading

import pytest
from tests.support.paths import ROOT

from holdfast.testing.drivers import DriverConformance


@pytest.fixture
def example(monkeypatch):
    spec = importlib.util.spec_from_file_location("object_store_example", ROOT / "examples" / "object_store.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def server(example, tmp_path):
    class Store(example.Objects):
        home = tmp_path
        way = ""

        def do_PUT(self):
            way, type(self).way = self.way, ""
            if way == "fail":
                self.rfile.read(int(self.headers["Content-Length"]))
                self._answer(503, b"try again later")
            elif way == "lose":
                self._answer = lambda *_: None
                super().do_PUT()
                self.close_connection = True
            else:
                super().do_PUT()

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


class TestObjectStoreDriver(DriverConformance):
    @pytest.fixture
    def open_driver(self, example, server):
        self.server = server
        return lambda: example.ObjectStoreDriver("127.0.0.1", server.server_port, "space")

    def fail_next_batch(self, driver, monkeypatch):
        self.server.RequestHandlerClass.way = "fail"

    def lose_next_answer(self, driver, monkeypatch):
        self.server.RequestHandlerClass.way = "lose"
