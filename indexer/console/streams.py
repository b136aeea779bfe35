"""Standard streams that are not there: started with ``>&-``, or by a program that closed them."""

from __future__ import annotations

import os
import sys

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def stand_in_for_closed() -> None:
    """Put the null device in place of every standard stream that is missing, descriptor and all.

    Python leaves None for such a stream. A descriptor that stays free is worse: the next file that is opened gets
    it, and is written to by whatever writes to standard error.
    """
    for number, (name, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is not None:
            continue
        descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest that is free, so `number` unless another file has it
        os.set_inheritable(descriptor, descriptor == number)  # for workers: they write where we would
        stream = os.fdopen(descriptor, mode, encoding="utf-8", errors="backslashreplace", closefd=False)
        setattr(sys, name, stream)
