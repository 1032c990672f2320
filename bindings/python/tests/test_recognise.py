# SPDX-License-Identifier: Apache-2.0
# test_recognise.py - what librope.transformers recognises in code, and what it leaves: copies of modelling files
from __future__ import annotations

import importlib
import os
import pathlib
import re
import sys
import time
import types
import unittest

import support

torch, transformers = support.needs("torch", "transformers")
from librope import Style  # noqa: E402
from librope import _recognise as recognise  # noqa: E402
from librope.transformers import patch, report, unpatch  # noqa: E402
from test_transformers import BASE, MODELS, distance, make_config, rotations, run, vary_norms  # noqa: E402

IS_LONG = bool(os.environ.get("ROPE_TEST_LONG"))
NAME = "transformers_modules.checkpoint.modeling_"

# One token of a modelling file, what surrounds it, and another in its place
TOKENS = [
    (r"torch\.cat\(\((-)x2, x1", ""),
    (r"torch\.cat\(\(-x2, (x1)", "x2"),
    (r"torch\.stack\(\[-x2, (x1)", "-x1"),
    (r"\(q \* (cos)\) \+", "sin"),
    (r"\(k \* cos\) (\+) \(rotate", "-"),
    (r"\(q \* cos\) \+ \((rotate_half)\(q\) \* sin", "abs"),
    (r"q1 \* (cos) - q2", "-cos"),
    (r"q2 \* cos (\+) q1", "-"),
    (r"k1 \* cos (-) k2", "+"),
    (r"q_embed, (k_embed)\n", "k_embed * 1.25"),
    (r"xq_ (\*) freqs_cis", "/"),
    (r"torch\.polar\(torch\.ones_like\(freqs\), (freqs)\)", "-freqs"),
    (r"torch\.cat\(\(freqs, (freqs)\), dim=-1\)", "-freqs"),
    (r"repeat_interleave\((freqs), 2, dim=-1\)", "freqs * freqs"),
    (r"emb = (torch\.repeat_interleave)", "(lambda x, n, dim: torch.cat((x, x), dim))"),
    (r"emb\.(cos)\(\)", "tanh"),
    (r"emb\.sin\(\) (\*) self", "-"),
    (r"emb\.sin\(\) (\*) attention", "-"),
    (r"position_ids\[:, None, :\]\.(float)\(\)", "square"),
    (r"self\.act_fn\(self\.gate_proj\(x\)\) (\*) self", "+"),
    (r"self\.act_fn\(self\.(gate_proj)\(x\)\) \*", "up_proj"),
    (r"\) \* self\.(up_proj)\(x\)\)", "gate_proj"),
    (r"self\.(act_fn)\(self\.gate_proj", "config.hidden_size / 64 * self.act_fn"),
    (r"up_states (\*) self\.activation_fn", "+"),
    (r"up_states \* self\.activation_fn\((gate)\)", "-gate"),
    (r"self\.activation_fn\(self\.(gate_proj)\(x\)\)", "up_proj"),
    (r"self\.(down_proj)\(self\.act_fn", "down_proj(x) + self.down_proj"),
    (r"hidden_states\.(pow\(2\))\.mean", "abs()"),
    (r"x\.(pow\(2\))\.mean", "abs()"),
    (r"\(hidden_states - (mean)\)\.pow", "1"),
    (r"self\.weight (\*) hidden_states\.to", "+"),
    (r"\((1\.0) \+ self\.weight", "2.0"),
    (r"= self\.(q_norm)\(", "k_norm"),
    (r"= self\.k_norm\((?:self\.k_proj\()?(?:key|hidden)_states\)(\)?)\.?", r"\1 * 1.5"),
    (r"query_states = self\.(qk_norm)\(query", "q_proj.forward.__self__.training or self.qk_norm"),
    (r"self\.qk_norm\((key_states)\)", "2 * key_states"),
    (r"scaling = 1 (\+) beta", "-"),
    (r"query_states = query_states (\*) get_llama", "/"),
    (r"(query_states), key_states, cos, sin\)\n", "query_states * 2"),
    (r"query_states, (key_states), cos, sin\)\n", "key_states.flip(2)"),
]


def source_of(family):
    modeling = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    return pathlib.Path(modeling.__file__).read_text(encoding="utf-8"), modeling


def import_copy(test, family, source):
    """Imports the source as that of a checkpoint with code of its own is."""
    name = NAME + family
    module = types.ModuleType(name)
    module.__package__, module.__file__ = f"transformers.models.{family}", source_of(family)[1].__file__
    sys.modules[name] = module
    test.addCleanup(sys.modules.pop, name, None)
    exec(compile(source, f"{name}.py", "exec"), module.__dict__)
    return module


def make_copy(module, name):
    """A model of a configuration of test_transformers.py, of the module's classes."""
    config = make_config(name)
    config._attn_implementation = "eager"
    torch.manual_seed(20261129)
    model = getattr(module, re.sub("(Text)?Config$", "ForCausalLM", type(config).__name__))(config).eval()
    vary_norms(model)
    return model


def num_patched(model):
    return sum("_librope_method" in module.__dict__ for module in model.modules())


def family_of(name):
    return name.partition(",")[0]


def half(x):
    return torch.cat((-x[..., x.shape[-1] // 2:], x[..., :x.shape[-1] // 2]), -1)


def pairs(x):
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def rotated(x, cos, sin, turn=half):
    return x * cos + turn(x) * sin


def usual(q, k, cos, sin, unsqueeze_dim=1):
    return tuple(rotated(x, cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)) for x in (q, k))


def named_otherwise(a, b, c, d):
    return rotated(a, c[:, None], d[:, None]), rotated(b, c[:, None], d[:, None])


def other_order(q, k, sin, cos):
    return named_otherwise(q, k, cos, sin)


def one_tensor(x, cos, sin):
    return rotated(x, cos[:, :, None], sin[:, :, None], pairs)


def one_column(q, k, cos, sin):
    return tuple(torch.cat((x1 * c - x2 * s, x2 * c + x1 * s), -1)
                 for c, s in ((cos[:, None], sin[:, None]),) for x1, x2 in (q.chunk(2, -1), k.chunk(2, -1)))


def partial(q, k, cos, sin, unsqueeze_dim=1):
    width = cos.shape[-1]
    parts = usual(q[..., :width], k[..., :width], cos, sin, unsqueeze_dim)
    return tuple(torch.cat((part, x[..., width:]), -1) for part, x in zip(parts, (q, k)))


def complex_table(q, k, table):
    return tuple(torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * table[:, :, None])
                 .flatten(3) for x in (q, k))


def in_fp32(q, k, cos, sin):
    return tuple(x.to(q.dtype) for x in named_otherwise(q.float(), k.float(), cos.float(), sin.float()))


FORMS = {  # what is recognised: columns, style, axes, partial windows
    usual: (recognise.HALF, Style.HALF, ((1, "bhsd"), (2, "bshd")), False),
    named_otherwise: (recognise.HALF, Style.HALF, ((None, "bhsd"),), False),
    other_order: (recognise.HALF, Style.HALF, ((None, "bhsd"),), False),
    one_tensor: (recognise.REPEATED, Style.INTERLEAVED, ((None, "bshd"),), False),
    one_column: (recognise.SINGLE, Style.HALF, ((None, "bhsd"),), False),
    partial: (recognise.HALF, Style.HALF, ((1, "bhsd"), (2, "bshd")), True),
    complex_table: (recognise.COMPLEX, Style.INTERLEAVED, ((None, "bshd"),), False),
    in_fp32: (recognise.HALF, Style.HALF, ((None, "bhsd"),), False),
}


def clamped(q, k, cos, sin):
    return named_otherwise(q.clamp(-1000, 1000), k, cos, sin)


def without_gradient(q, k, cos, sin):
    q_out, k_out = named_otherwise(q, k, cos, sin)
    return q_out, k_out.detach() + 0 * k


def in_place(q, k, cos, sin):
    q_out, k_out = named_otherwise(q, k, cos, sin)
    q.data.mul_(2)
    q._version  # .data has no version
    return q_out, k_out.mul_(1)


def long_ones(q, k, cos, sin):
    return named_otherwise(q, k, cos, sin) if q.shape[2] < 60 else (q, k)


def zeros_to_ones(q, k, cos, sin):
    return named_otherwise(torch.where(q == 0, 1.0, q), k, cos, sin)


def bf16_inside(q, k, cos, sin):
    return tuple(x.to(q.dtype) for x in named_otherwise(q.bfloat16(), k.bfloat16(), cos, sin))


def backwards(q, k, cos, sin):
    return named_otherwise(q, k, cos, -sin)


class FunctionsTest(unittest.TestCase):
    def test_forms(self):
        for function, (columns, style, layouts, is_partial) in FORMS.items():
            with self.subTest(function.__name__):
                found = recognise.rotation_of(function)
                self.assertEqual((found.columns, found.style, found.layouts, found.is_partial),
                                 (columns, style, layouts, is_partial))

    def test_what_is_no_rotation(self):
        for function in (clamped, without_gradient, long_ones, zeros_to_ones, bf16_inside, backwards, torch.cat,
                         lambda q, k, cos, sin: (q, k), lambda q, k: (q, k), lambda *arguments: usual(*arguments)):
            with self.subTest(getattr(function, "__name__", str(function))), self.assertRaises(recognise.Unrecognised):
                recognise.rotation_of(function)

    def test_equal_code_that_reads_other_values_is_not_the_same(self):
        def make(factor):
            return lambda q, k, cos, sin: named_otherwise(q * factor, k, cos, sin)

        recognise.rotation_of(make(1.0))
        with self.assertRaises(recognise.Unrecognised):
            recognise.rotation_of(make(1.25))

    def test_random_numbers_and_modes_stay(self):
        before = torch.random.get_rng_state()
        offline = os.environ.get("HF_HUB_OFFLINE")
        recognise.rotation_of(lambda q, k, cos, sin: named_otherwise(torch.nn.functional.dropout(q, 0.0), k, cos, sin))
        self.assertTrue(torch.equal(torch.random.get_rng_state(), before))
        self.assertTrue(torch.is_grad_enabled())
        self.assertEqual(os.environ.get("HF_HUB_OFFLINE"), offline)

    @unittest.skipUnless(IS_LONG, "a walk over all modelling files")
    def test_all_files(self):
        recognised, total = 0, 0
        folder = pathlib.Path(transformers.__file__).parent / "models"
        for file in sorted(folder.glob("*/modeling_*.py")):
            names = re.findall(r"^def (\w*(?:rotary|rope)\w*)\(", file.read_text(encoding="utf-8"), re.M)
            if not names:
                continue
            try:
                module = importlib.import_module(f"transformers.models.{file.parent.name}.{file.stem}")
            except Exception:  # it needs what is not installed
                continue
            for name in names:
                total += 1
                try:
                    recognise.rotation_of(getattr(module, name))
                    recognised += 1
                except recognise.Unrecognised:
                    pass
        print(f"{recognised} of {total} functions")
        self.assertGreater(recognised, 150)


class GatesTest(unittest.TestCase):
    """Modules of two or three projections."""

    class Mlp(torch.nn.Module):
        def __init__(self, compute, both=False):
            super().__init__()
            self.a, self.b = torch.nn.Linear(6, 16 if both else 8), None if both else torch.nn.Linear(6, 8)
            self.c, self.act, self.compute, self.limit = torch.nn.Linear(8, 6), torch.nn.SiLU(), compute, 1e4

        def forward(self, x):
            return self.compute(self, x)

    @staticmethod
    def usual(self, x):
        return self.c(self.b(x) * self.act(self.a(x)))

    @staticmethod
    def limited(self, x):
        return self.c(self.act(self.a(x).clamp(max=self.limit)) * self.b(x))

    @staticmethod
    def first(self, x):
        gate, up = self.a(x).chunk(2, -1)
        return self.c(self.act(gate) * up)

    @staticmethod
    def second(self, x):
        up, gate = self.a(x).chunk(2, -1)
        return self.c(up * torch.nn.functional.silu(gate))

    def check(self, mlp, is_replaced=True):
        x = torch.randn(3, 5, 6)
        before = mlp(x)
        if not is_replaced:
            with self.assertRaisesRegex(ValueError, "nothing to patch"):
                patch(mlp)
            return
        patch(mlp)
        with support.seen_args(lambda function, args: seen.append(function)):
            seen = []
            after = mlp(x)
        self.assertEqual(seen, ["swiglu_forward"])
        self.assertLess(distance(after, before), 1e-5)

    def test_forms(self):
        for compute, both in ((self.usual, False), (self.limited, False), (self.first, True), (self.second, True)):
            with self.subTest(compute.__name__):
                self.check(self.Mlp(compute, both))

    def test_what_is_no_such_gate(self):
        functions = torch.nn.functional
        for compute in (
                lambda self, x: self.c(functions.gelu(self.a(x)) * self.b(x)),
                lambda self, x: self.c(functions.silu(self.a(x).clamp(max=1000)) * self.b(x)),
                lambda self, x: self.c(self.act(self.a(x)) * (self.b(x) + 1)),
                lambda self, x: self.c(self.act(self.a(x)) * self.b(x).detach()),
                lambda self, x: self.c(self.act(self.a(x)) * self.b(x)) * (0.5 if self.training else 1),
                lambda self, x: self.c(functions.dropout(self.act(self.a(x)) * self.b(x), 0.1, self.training)),
                lambda self, x: x + self.c(self.act(self.a(x)) * self.b(x)),
                lambda self, x: self.c(self.act(self.a(x)) * self.b(2 * x)),
                lambda self, x: self.c(self.act(self.a(x) * (1 if x.shape[1] < 60 else 2)) * self.b(x))):
            self.check(self.Mlp(compute), False)

    def test_values_that_change_afterwards(self):
        mlp = self.Mlp(self.limited)
        patch(mlp)
        x = torch.randn(3, 5, 6)
        for change in (lambda: setattr(mlp, "limit", 0.01), lambda: setattr(mlp, "limit", True),
                       lambda: setattr(mlp, "act", torch.nn.Softplus(2.0)),
                       lambda: setattr(mlp, "compute", lambda self, x: self.a(x))):
            change()
            self.assertTrue(torch.equal(mlp(x), mlp.compute(mlp, x)))


class CopiesTest(unittest.TestCase):
    def test_copies_of_files_are_replaced(self):
        for name in [key for key in MODELS if "," not in key]:
            with self.subTest(name):
                model = make_copy(import_copy(self, family_of(name), source_of(family_of(name))[0]), name)
                before = run(model)
                self.assertEqual(num_patched(patch(model)), MODELS[name][2])
                for actual, expected in zip(run(model), before):
                    self.assertLess(distance(actual, expected), 1e-4)
                self.assertTrue(torch.equal(run(unpatch(model))[0], before[0]))

    def test_copies_with_another_token(self):
        """None is replaced by something that computes other numbers."""
        num_different, num_left, used = 0, 0, set()
        for name in [key for key in MODELS if "," not in key or key == "deepseek_v3, half"]:
            source = source_of(family_of(name))[0]
            expected = run(make_copy(import_copy(self, family_of(name), source), name))[0]
            for pattern, other in TOKENS:
                found = re.search(pattern, source)
                if found is None or (not IS_LONG and self.count(pattern, used) >= 2):
                    continue
                changed = source[:found.start(1)] + found.expand(other) + source[found.end(1):]
                with self.subTest(name, token=found.group(), other=other):
                    try:
                        model = make_copy(import_copy(self, family_of(name), changed), name)
                        before = run(model)
                    except (TypeError, ValueError, RuntimeError, AttributeError):
                        continue  # it is no program
                    is_different = distance(before[0], expected) > 1e-3
                    num_different += is_different
                    used.add((pattern, name))
                    try:
                        num_left += num_patched(patch(model)) < MODELS[name][2]
                    except ValueError as error:
                        self.assertRegex(str(error), "nothing to patch")
                        num_left += 1
                    for actual, wanted in zip(run(model), before):
                        self.assertLess(distance(actual, wanted), 1e-4)
        self.assertGreaterEqual(num_different, 40)
        self.assertGreaterEqual(num_left, 30)  # others still rotate and gate by tables and projections of their own

    def count(self, pattern, used):
        return sum(pattern == other for other, _ in used)


class ModelsTest(unittest.TestCase):
    def test_tables_of_one_column(self):
        """gpt-oss has a column of each pair, and Llama's names."""
        config = transformers.GptOssConfig(**{
            **BASE, "head_dim": 16, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"]})
        config._attn_implementation = "eager"
        torch.manual_seed(1)
        model = transformers.GptOssForCausalLM(config).eval()
        before = run(model)
        with rotations() as seen:
            patch(model)
            actual = run(model)
        self.assertEqual(seen, [False, False])
        for a, b in zip(actual, before):
            self.assertLess(distance(a, b), 1e-4)
        self.assertIn("GptOssExperts", report(model))
        unpatch(model)

    def test_many_layers(self):
        """Layers of one class are recognised once."""
        def make():
            return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
                **{**BASE, "num_hidden_layers": 36, "head_dim": 32}))

        first, second = make(), make()
        start = time.monotonic()
        patch(first)
        between = time.monotonic()
        entries = sum(map(len, recognise._results.values()))
        patch(second)
        end = time.monotonic()
        self.assertEqual(num_patched(second), 73)
        self.assertEqual(sum(map(len, recognise._results.values())), entries)
        self.assertLess(between - start, 6)  # 1 s on a machine that has nothing else to do
        self.assertLess(end - between, 1)


if __name__ == "__main__":
    unittest.main()
