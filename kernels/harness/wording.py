"""Words that come from elsewhere, made fit for one line of a message: nothing in them is obeyed by a terminal."""

from __future__ import annotations

import contextlib
import reprlib
import signal
from collections.abc import Iterator

MOST = 500  # characters


class Interrupted(KeyboardInterrupt):
    """A signal asks us to end; its argument is the exit code. What a gate's own code raises is never this."""

    @classmethod
    def now(cls, number: int, frame: object) -> None:
        """The signal handler."""
        raise cls(128 + number)

    @classmethod
    def on(cls, number: signal.Signals) -> None:
        """Take over a signal, unless whoever started us wants it ignored."""
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, cls.now)


def printable(text: str, keep: str = "\n\t") -> str:
    """The same with every character that could steer a terminal written as its escape, but for those in `keep`."""
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in "".join(list(text))
    )


def one_line(text: str, most: int = MOST) -> str:
    """At most `most` characters and no line break; the last character tells that something was left out."""
    told = printable(text[: most + 1], keep="")
    return told if len(told) <= most else told[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def described(error: BaseException) -> str:
    """Class and words of an exception in one line, also of one that cannot be asked for them."""
    name, words = "an exception", "it cannot be printed"
    with _whatever_happens():
        name = one_line(str(type(error).__name__), 100)
        words = one_line("".join(list(str(error))))
    return f"{name}: {words}" if words else name


def given(value: object) -> str:
    """A value as Python writes it, cut short before it is written: nested or long ones would take forever."""
    with _whatever_happens():
        return one_line(_SHORT.repr(value))
    return "a value that cannot be printed"


@contextlib.contextmanager
def _whatever_happens() -> Iterator[None]:
    try:
        yield
    except Interrupted:
        raise
    except BaseException:  # noqa: S110  the words that stand already are the answer
        pass


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100
