import signal
import threading

import pytest

from swad.util.signals import handle_signals


def handlers() -> list[object]:
    return [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]


def test_handlers_are_restored_also_after_an_error():
    before, received = handlers(), []
    with pytest.raises(ZeroDivisionError), handle_signals(lambda signum, frame: received.append(signum)):
        signal.raise_signal(signal.SIGTERM)
        raise ZeroDivisionError
    assert received == [signal.SIGTERM]
    with handle_signals(signal.SIG_IGN, [signal.SIGINT]):
        assert handlers() == [signal.SIG_IGN, before[1]]
    assert handlers() == before


def test_another_thread_changes_nothing():
    before, inside = handlers(), []

    def work() -> None:
        with handle_signals(signal.SIG_IGN):
            inside.append(handlers())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [before]
