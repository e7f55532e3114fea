import signal
import threading

import pytest

from swad.util.signals import StopRequest, handle_signals


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


def test_the_first_signal_is_a_request_and_a_second_ctrl_c_raises():
    stop = StopRequest()
    stop.handle(signal.SIGINT, None)
    assert stop.requested
    assert not stop.raised
    with pytest.raises(KeyboardInterrupt):
        stop.handle(signal.SIGINT, None)
    assert stop.raised


def test_a_signal_in_an_immediate_block_raises_at_once():
    stop = StopRequest()
    with pytest.raises(KeyboardInterrupt), stop.immediate():
        stop.handle(signal.SIGTERM, None)
    stop = StopRequest()
    with stop.immediate():
        pass
    stop.handle(signal.SIGTERM, None)
    assert stop.requested
    assert not stop.raised
