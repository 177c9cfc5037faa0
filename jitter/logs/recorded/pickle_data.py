"""Read the plain data of a pickle by its opcodes: nothing is imported, nothing is called.

PyTorch's C++ pickler (torch/csrc/jit/serialization/pickler.cpp) wraps containers in calls of
`torch.jit._pickle.restore_type_tag` and `build_*list`; their first argument is the data. Every other global is opaque.
"""

import pickletools
from typing import Any, Final

_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: Final = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_SET": list}
_LITERALS: Final = frozenset((
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8", "BYTEARRAY8",
))  # fmt: skip
_TUPLES: Final = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED: Final = frozenset(("PROTO", "FRAME"))
_DATA_OF_ARGUMENT: Final = "torch.jit._pickle "


class _Mark:
    """The mark on the stack."""


class Opaque:
    """A value that only code could make; its code is not run."""


_MARK: Final = _Mark()
OPAQUE: Final = Opaque()


class _Tag:
    """A global of `torch.jit._pickle`: a call of it returns its first argument."""


_TAG: Final = _Tag()


def plain_data(content: bytes) -> Any:
    """Return what a pickle holds: dicts, lists, tuples, texts and numbers; what needs code is `OPAQUE`.

    Raises ValueError where the content is no whole pickle.
    """
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name == "STOP":
                return machine.stack[-1]
            machine.step(opcode.name, argument)
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError, UnicodeError) as error:
        raise ValueError("not a pickle of plain data") from error
    raise ValueError("the pickle has no end")


class _Machine:
    """The stack and the memo of the pickle format."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:  # noqa: PLR0912
        """Do what an opcode says, where that is to build data."""
        stack = self.stack
        if name in _LITERALS:
            stack.append(argument)
        elif name in {"BINPUT", "LONG_BINPUT", "PUT"}:
            self._memo[int(argument)] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in {"BINGET", "LONG_BINGET", "GET"}:
            stack.append(self._memo[int(argument)])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            count = _TUPLES[name]
            stack[len(stack) - count :] = [tuple(stack[len(stack) - count :])]
        elif name in {"TUPLE", "LIST", "DICT"}:
            self._build(name)
        elif name in {"APPEND", "APPENDS", "ADDITEMS"}:
            items = [stack.pop()] if name == "APPEND" else self._to_mark()
            if isinstance(stack[-1], list):
                stack[-1].extend(items)
        elif name in {"SETITEM", "SETITEMS"}:
            items = self._to_mark() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
            if isinstance(stack[-1], dict):
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
        elif name in {"POP", "POP_MARK"}:
            _ = stack.pop() if name == "POP" else self._to_mark()
        elif name == "DUP":
            stack.append(stack[-1])
        elif name not in _IGNORED:
            self._code(name, argument)

    def _to_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("no mark")
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def _build(self, name: str) -> None:
        items = self._to_mark()
        made = tuple(items) if name == "TUPLE" else items
        self.stack.append(dict(zip(items[::2], items[1::2], strict=True)) if name == "DICT" else made)

    def _code(self, name: str, argument: Any) -> None:
        """Take an opcode that would import or call: it leaves data of the call's argument, or `OPAQUE`."""
        stack = self.stack
        if name == "GLOBAL":
            stack.append(_TAG if str(argument).startswith(_DATA_OF_ARGUMENT) else OPAQUE)
        elif name == "STACK_GLOBAL":
            module = stack[-2]
            stack[-2:] = [_TAG if module == _DATA_OF_ARGUMENT.strip() else OPAQUE]
        elif name in {"REDUCE", "NEWOBJ"}:
            arguments, function = stack.pop(), stack.pop()
            is_data = function is _TAG and isinstance(arguments, tuple) and arguments
            stack.append(arguments[0] if is_data else OPAQUE)
        elif name == "BUILD":
            stack.pop()
        elif name in {"BINPERSID", "NEWOBJ_EX"}:
            del stack[len(stack) - (1 if name == "BINPERSID" else 3) :]
            stack.append(OPAQUE)
        elif name in {"INST", "OBJ"}:
            self._to_mark()
            stack.append(OPAQUE)
        else:
            stack.append(OPAQUE)
