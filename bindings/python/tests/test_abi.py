# SPDX-License-Identifier: Apache-2.0
# test_abi.py - the mirror in _abi.py equals the header, and the golden files in tests/abi
from __future__ import annotations

import ctypes
import re
import unittest
from pathlib import Path

from librope import _abi, _enums, _tensors

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "abi"
HEADER = (ROOT / "include" / "rope" / "rope.h").read_text(encoding="utf-8")
CODE = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)

SCALARS = {"int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "int64_t": ctypes.c_int64, "double": ctypes.c_double,
           "size_t": ctypes.c_size_t}


def ctype_of(text):
    """The mirror's type for a C type of the header, of a result or a parameter, with or without its name."""
    text = re.sub(r"\bconst\b", "", text).strip()
    match = re.match(r"(\w+)\s*(\**)", text)
    name, stars = match.group(1), len(match.group(2))
    if name == "void":
        return None if stars == 0 else ctypes.c_void_p
    if name == "char":
        return ctypes.c_char_p
    if name in ("rope_desc_t", "swiglu_desc_t"):
        name, stars = name[:-1] + "p", stars - 1
    ctype = SCALARS.get(name) or getattr(_abi, name)
    for _ in range(stars):
        ctype = ctypes.POINTER(ctype)
    return ctype


class AbiTest(unittest.TestCase):
    def test_every_line_of_the_layout_golden(self):
        structs = {}
        for line in (GOLDEN / "layout.golden").read_text().splitlines():
            words = line.split()
            with self.subTest(line):
                if words[0] == "type":
                    self.assertIs(getattr(_abi, words[1]), getattr(ctypes, "c_" + words[2]))
                elif words[0] == "value":
                    self.assertEqual(getattr(_abi, words[1]), int(words[2]))
                elif words[0] == "struct":
                    structs[words[1]] = []
                    self.assertEqual(ctypes.sizeof(getattr(_abi, words[1])), int(words[3]))
                elif words[0] == "field":
                    struct, field = words[1].split(".")
                    structs[struct].append(field)
                    member = getattr(getattr(_abi, struct), field)
                    self.assertEqual((member.offset, member.size), (int(words[3]), int(words[5])))
                else:
                    self.fail("a line of an unknown kind")
        mirrored = {name: [field[0] for field in value._fields_] for name, value in vars(_abi).items()
                    if isinstance(value, type) and ctypes.Structure in value.__bases__}
        self.assertEqual(mirrored, structs)

    def test_exactly_the_functions_of_the_symbols_golden(self):
        symbols = (GOLDEN / "symbols.golden").read_text().split()
        self.assertEqual(sorted(_abi.FUNCTIONS), sorted(symbols))

    def test_every_constant_of_the_header_and_no_other(self):
        header = {name: int(number) for name, number in
                  re.findall(r"\b((?:ROPE|SWIGLU)_[A-Z0-9_]+)\s*=\s*(\d+)", CODE)}
        header.update((name, int(number)) for name, number in
                      re.findall(r"#define (ROPE_VERSION_(?:MAJOR|MINOR|PATCH)) (\d+)", CODE))
        mirror = {name: value for name, value in vars(_abi).items() if name.startswith(("ROPE_", "SWIGLU_"))}
        self.assertEqual(mirror, header)

    def test_every_enumerator_of_the_header_and_no_other(self):
        for enum, prefix in ((_enums.Device, "ROPE_DEVICE_"), (_enums.Dtype, "ROPE_DTYPE_"),
                             (_enums.Layout, "ROPE_LAYOUT_"), (_enums.Style, "ROPE_STYLE_"),
                             (_enums.TableRows, "ROPE_TABLE_"), (_enums.Scaling, "ROPE_SCALING_"),
                             (_enums.Sections, "ROPE_SECTIONS_"), (_enums.NormType, "ROPE_NORM_"),
                             (_enums.NormOrder, "ROPE_NORM_ORDER_"), (_enums.NormExtent, "ROPE_NORM_EXTENT_"),
                             (_enums.NormTensors, "ROPE_NORM_TENSOR_"), (_enums.NormRounding, "ROPE_NORM_ROUND_"),
                             (_enums.QuantRounding, "ROPE_QUANT_ROUND_"),
                             (_enums.ScaleLayout, "SWIGLU_SCALE_LAYOUT_")):
            with self.subTest(prefix):
                others = "(FLAG|ORDER|EXTENT|TENSOR|ROUND)_" if prefix == "ROPE_NORM_" else "FLAG_"
                constants = {name: value for name, value in vars(_abi).items()
                             if name.startswith(prefix) and not re.match(others, name[len(prefix):])}
                # A name in Python cannot begin with a digit.
                names = {prefix + member.name.replace("TILES_", ""): int(member) for member in enum}
                self.assertEqual(names, constants)

    def test_every_prototype_of_the_header(self):
        prototypes = re.findall(r"ROPE_API\s+([\w\s]+?\**)(\w+)\(([^)]*)\);", CODE)
        self.assertEqual(sorted(name for _, name, _ in prototypes), sorted(_abi.FUNCTIONS))
        for result, name, parameters in prototypes:
            with self.subTest(name):
                types = [] if parameters.strip() == "void" else [ctype_of(text) for text in parameters.split(",")]
                self.assertEqual(_abi.FUNCTIONS[name], (ctype_of(result), types))

    def test_the_packed_tensor_is_the_struct(self):
        self.assertEqual(_tensors.PACKED_TENSOR.size, ctypes.sizeof(_abi.rope_tensor_t))
        packed = _tensors.PACKED_TENSOR.pack(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
        tensor = _abi.rope_tensor_t.from_buffer_copy(packed)
        self.assertEqual((tensor.data, tensor.dtype, tensor.ndim, tensor.flags), (1, 2, 3, 4))
        self.assertEqual((list(tensor.shape), list(tensor.stride)), ([5, 6, 7, 8], [9, 10, 11, 12]))


if __name__ == "__main__":
    unittest.main()
