"""How often this process looks for cycles of objects that nobody needs."""

import gc

_NEW_OBJECTS = 100_000


def seldom_collected() -> None:
    """Look seldom: a large lake's records stay until the end, and to go through them again and again takes a tenth.

    For processes that are ours: a command's, and those that it makes.
    """
    gc.set_threshold(_NEW_OBJECTS, 20, 100)
