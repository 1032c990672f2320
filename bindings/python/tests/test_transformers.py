# SPDX-License-Identifier: Apache-2.0
# test_transformers.py - small models with random weights before and after librope.transformers.patch
from __future__ import annotations

import contextlib
import copy
import functools
import gc
import importlib
import itertools
import os
import pickle
import re
import struct
import subprocess
import sys
import tempfile
import types
import unittest
import weakref

import support

torch, transformers = support.needs("torch", "transformers")
try:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
except ImportError as error:
    raise unittest.SkipTest(f"transformers {transformers.__version__} is too old: {error}") from None

import librope  # noqa: E402
from librope.transformers import from_hf_config, patch, report, unpatch  # noqa: E402

transformers.logging.set_verbosity_error()

torch.set_num_threads(1)  # the models are small: more threads wait for each other
IS_LONG = bool(os.environ.get("ROPE_TEST_LONG"))
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() and librope.device_count("cuda") else [])
# The weights are so large that attention depends on few tokens, and positions matter.
BASE = dict(vocab_size=97, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.2, pad_token_id=0, bos_token_id=1,
            eos_token_id=2)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
DEEPSEEK = dict(
    num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16,
    n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, moe_intermediate_size=32,
    first_k_dense_replace=1, rope_parameters={
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32, "mscale": 1.0,
        "mscale_all_dim": 0.7})
# The temperature differs from 1 from the fourth position on, and one of three layers has no positions.
LLAMA4 = dict(  # one expert: with several, the last bit of bf16 would choose between them
    num_hidden_layers=3, head_dim=16, intermediate_size_mlp=96, num_local_experts=1, interleave_moe_layer_step=2,
    no_rope_layers=[1, 0, 1], floor_scale=4, attn_scale=0.4, attention_chunk_size=8)
MINISTRAL3 = dict(
    head_dim=16, rope_parameters={
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 4,
        "llama_4_scaling_beta": 0.8, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 4.0, "beta_slow": 1.0})
MISTRAL4 = dict(
    num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16,
    n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=1,
    rope_parameters={**MINISTRAL3["rope_parameters"], "partial_rotary_factor": 0.5})
PHI3 = dict(
    head_dim=16, max_position_embeddings=64, original_max_position_embeddings=8, rope_parameters={
        "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75, "factor": 8.0,
        "original_max_position_embeddings": 8, "short_factor": [1.0] * 6,
        "long_factor": [2.0, 2.0, 3.0, 3.0, 4.0, 4.0]})

# name: configuration class, its arguments in addition to BASE, modules that patch changes
MODELS = {
    "llama": ("LlamaConfig", dict(rope_parameters=LLAMA3), 3),
    "llama, dynamic": ("LlamaConfig", dict(
        max_position_embeddings=8, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}), 3),
    "qwen2": ("Qwen2Config", {}, 3),
    "qwen3": ("Qwen3Config", dict(head_dim=32), 5),
    "llama4": ("Llama4TextConfig", LLAMA4, 6),
    "llama4, without norms": ("Llama4TextConfig", dict(
        LLAMA4, use_qk_norm=False, rope_parameters={**LLAMA3, "rope_theta": 1e4}), 4),
    "ministral3": ("Ministral3Config", MINISTRAL3, 5),
    "mistral": ("MistralConfig", dict(head_dim=16), 3),
    "mistral4": ("Mistral4Config", MISTRAL4, 4),
    "mistral4, half": ("Mistral4Config", dict(MISTRAL4, rope_interleave=False), 4),
    "gemma": ("GemmaConfig", dict(head_dim=16), 1),
    "gemma2": ("Gemma2Config", dict(head_dim=16), 1),
    "gemma3": ("Gemma3TextConfig", dict(head_dim=16, layer_types=["sliding_attention", "full_attention"]), 3),
    "phi3": ("Phi3Config", PHI3, 3),
    "gpt_neox": ("GPTNeoXConfig", {}, 1),
    "olmo2": ("Olmo2Config", {}, 5),
    "cohere": ("CohereConfig", dict(use_qk_norm=True), 5),
    "cohere, without norms": ("CohereConfig", {}, 3),
    "deepseek_v3": ("DeepseekV3Config", DEEPSEEK, 4),
    "deepseek_v3, half": ("DeepseekV3Config", dict(DEEPSEEK, rope_interleave=False), 4),
}
# Relative to the largest logit and the largest gradient.
TOLERANCES = {torch.float32: (2e-5, 1e-4), torch.float64: (1e-6, 1e-6), torch.bfloat16: (0.06, 0.15)}


def make_config(name):
    config_class = getattr(transformers, MODELS[name][0], None)
    if config_class is None:
        raise unittest.SkipTest(f"transformers {transformers.__version__} has no {MODELS[name][0]}")
    values = {**BASE, **copy.deepcopy(MODELS[name][1])}
    if name == "gpt_neox":
        del values["num_key_value_heads"]
    return config_class(**values)


def make_model(name, device="cpu", dtype=torch.float32):
    torch.manual_seed(20261120)
    config = make_config(name)
    config._attn_implementation = "eager"
    model = getattr(transformers, re.sub("(Text)?Config$", "ForCausalLM", type(config).__name__))(config)
    frequencies = [(module, key, value) for module in model.modules() for key, value in module._buffers.items()
                   if value is not None and "inv_freq" in key]
    model = model.to(device, dtype).eval()
    for module, key, value in frequencies:  # in fp32, as after from_pretrained
        module._buffers[key] = value.to(device)
    return model


def patched(test, target, **keywords):
    """Calls patch(target), and undoes it at the end of the test: a patched model keeps its family's functions."""
    test.addCleanup(unpatch, target)
    return patch(target, **keywords)


def run(model, **keywords):
    """The logits, and all gradients in one vector."""
    device = next(model.parameters()).device
    torch.manual_seed(1)
    ids = torch.randint(1, 97, (2, 13)).to(device)
    model.zero_grad(set_to_none=True)
    logits = model(ids, **keywords).logits
    logits.double().square().mean().backward()
    gradients = torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None])
    return logits.detach().double(), gradients


def distance(actual, expected):
    return ((actual - expected).abs().max() / expected.abs().max()).item()


@contextlib.contextmanager
def rotations():
    """Whether a norm was part of it, for each rotation of the code inside."""
    seen = []
    with support.seen_args(lambda function, args: function == "rope_forward" and seen.append(bool(args.norm))):
        yield seen


def launches(of):
    """The result of the code, and for each of its rotations the direction, and whether it had a norm."""
    seen = []
    with support.seen_args(lambda function, args: function in ("rope_forward", "rope_backward")
                           and seen.append((function, bool(args.norm)))):
        result = of()
    return result, seen


def vary_norms(model):
    """Makes weights that differ from 1: equal weights would hide their places."""
    with torch.no_grad():
        for module in model.modules():
            if type(module).__name__.endswith("Norm") and hasattr(module, "weight"):
                module.weight.add_(torch.randn_like(module.weight), alpha=0.3)


def step_of_training(model, call=None):
    """The loss, and the gradients of parameters by name."""
    torch.manual_seed(1)
    ids = torch.randint(1, 97, (2, 13)).to(next(model.parameters()).device)
    model.zero_grad(set_to_none=True)
    loss = (model if call is None else call)(ids, labels=ids, use_cache=False).loss
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def factors(of):
    """Whether a factor was part of it, for each rotation of the code, forward and backward."""
    seen = []
    with support.seen_args(lambda function, args: function in ("rope_forward", "rope_backward")
                           and seen.append(bool(args.input))):
        of()
    return seen


class PatchTest(unittest.TestCase):
    def test_logits_and_gradients(self):
        for name, (_, _, num_patched) in MODELS.items():
            for device in DEVICES:
                for dtype in (torch.float32, torch.bfloat16):
                    with self.subTest(name, device=device, dtype=dtype):
                        model = make_model(name, device, dtype)
                        before = run(model)
                        self.assertIs(patched(self, model), model)
                        self.assertEqual(sum("_librope_method" in m.__dict__ for m in model.modules()), num_patched)
                        rotated = run(model)
                        patch(model)  # a second call has no effect
                        unpatch(model)
                        after = run(model)
                        for actual, expected, tolerance in zip(rotated, before, TOLERANCES[dtype]):
                            self.assertLess(distance(actual, expected), tolerance)
                        self.assertTrue(torch.equal(after[0], before[0]))
                        # The comparison detects another rotation.
                        if dtype == torch.float32:
                            other = run(model, position_ids=torch.arange(13, device=device)[None] * 2)
                            self.assertGreater(distance(other[0], before[0]), 100 * TOLERANCES[dtype][0])

    def test_parity(self):
        """Logits and gradients have the bits of the original."""
        for name in MODELS:
            for device in DEVICES:
                for dtype in (torch.float32, torch.bfloat16, torch.float16):
                    with self.subTest(name, device=device, dtype=dtype):
                        model = make_model(name, device, dtype)
                        if name.startswith("llama4"):
                            with self.assertRaisesRegex(ValueError, "(?s)nothing to patch in .* in the same bits"):
                                patch(model, parity=True)
                            continue
                        expected = run(model)
                        patched(self, model, parity=True)
                        with rotations() as seen:
                            actual = run(model)
                        # OLMo-2 has cos and sin in fp32, and torch rounds only the products of its gradient: if it
                        # is recorded, the model's own code rotates.
                        is_own = name == "olmo2" and dtype != torch.float32
                        self.assertEqual(len(seen), 0 if is_own else 2)
                        for what, values, wanted in zip(("logits", "gradients"), actual, expected):
                            self.assertTrue(torch.equal(values, wanted), (what, distance(values, wanted)))
                        with torch.no_grad(), rotations() as seen:
                            ids = torch.randint(1, 97, (2, 13), generator=torch.Generator().manual_seed(3)).to(device)
                            logits = model(ids).logits
                        self.assertEqual(len(seen), 2)
                        with torch.no_grad():
                            self.assertTrue(torch.equal(logits, unpatch(model)(ids).logits))
                        patch(model, parity=True)
                        again = pickle.loads(pickle.dumps(model))
                        self.addCleanup(unpatch, again)
                        self.assertTrue(torch.equal(run(again)[0], expected[0]))

    def test_parity_of_a_module(self):
        modeling = importlib.import_module("transformers.models.llama.modeling_llama")
        expected = run(make_model("llama", dtype=torch.bfloat16))
        patched(self, modeling, parity=True)
        with rotations() as seen:
            actual = run(make_model("llama", dtype=torch.bfloat16))
        self.assertEqual(len(seen), 2)
        self.assertTrue(torch.equal(actual[0], expected[0]))
        self.assertTrue(torch.equal(actual[1], expected[1]))

    def test_norms_in_inference(self):
        for name in ("qwen3", "gemma3", "olmo2", "cohere", "llama4"):
            for device in DEVICES:
                for dtype in (torch.float32, torch.bfloat16):
                    with self.subTest(name, device=device, dtype=dtype):
                        model = make_model(name, device, dtype)
                        vary_norms(model)
                        ids = torch.randint(1, 97, (2, 13), device=device)
                        with torch.no_grad(), rotations() as seen:
                            expected = model(ids).logits.double()
                            patched(self, model)
                            actual = model(ids).logits.double()
                        self.assertEqual(seen, [True, True])
                        self.assertLess(distance(actual, expected), TOLERANCES[dtype][0])
                        unpatch(model)

    def assert_steps_alike(self, actual, expected, dtype):
        """Compares the losses, and the gradient of each parameter relative to its own largest number."""
        self.assertLess(distance(actual[0].double(), expected[0].double()), TOLERANCES[dtype][0])
        self.assertEqual(list(actual[1]), list(expected[1]))
        for name, grad in actual[1].items():
            self.assertEqual(grad.dtype, expected[1][name].dtype)
            self.assertLess(distance(grad.double(), expected[1][name].double()), TOLERANCES[dtype][1], name)

    FORTH, BACK = ("rope_forward", True), ("rope_backward", True)

    def test_norms_in_training(self):
        """One launch forward and one backward for each layer, also if forward is run again for backward."""
        for name, device, dtype in itertools.product(
                ("qwen3", "gemma3", "olmo2", "cohere", "llama4"), DEVICES, (torch.float32, torch.bfloat16)):
            with self.subTest(name, device=device, dtype=dtype):
                model = make_model(name, device, dtype).train()
                vary_norms(model)
                exact = copy.deepcopy(model).float() if dtype == torch.bfloat16 else model
                expected = step_of_training(exact)
                self.assertEqual(
                    sum("q_norm" in key or "k_norm" in key for key in expected[1]), 0 if name == "llama4" else 4)
                patched(self, model)
                actual, seen = launches(lambda: step_of_training(model))
                self.assertEqual(seen, 2 * [self.FORTH] + 2 * [self.BACK])
                if dtype == torch.bfloat16:
                    actual = actual[0], {name: grad.float() for name, grad in actual[1].items()}
                self.assert_steps_alike(actual, expected, dtype)
                for use_reentrant in (False, True):
                    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant})
                    if use_reentrant:
                        model.enable_input_require_grads()
                    again, seen = launches(lambda: step_of_training(model))
                    self.assertEqual(seen[:2], 2 * [self.FORTH])
                    self.assertEqual(sorted(seen[2:]), 2 * [self.BACK] + 2 * [self.FORTH])
                    for key, grad in again[1].items():
                        self.assertTrue(torch.equal(grad.float(), actual[1][key].float()), key)
                unpatch(model)

    def test_norms_in_training_compiled_in_one_graph(self):
        # This backend traces both directions, like all others, but generates no code, which would take minutes.
        for name in ("qwen3", "gemma3", "olmo2", "cohere"):
            with self.subTest(name):
                torch._dynamo.reset()
                model = make_model(name)
                vary_norms(model)
                expected = step_of_training(model)
                compiled = torch.compile(patched(self, model), backend="aot_eager", fullgraph=True)
                actual, seen = launches(lambda: step_of_training(model, compiled))
                self.assertEqual(seen, 2 * [self.FORTH] + 2 * [self.BACK])
                self.assert_steps_alike(actual, expected, torch.float32)
                unpatch(model)

    def test_norms_with_frozen_parameters(self):
        """Gradients of other parameters do not change, and sums are computed only for weights that have a gradient."""
        for name, part, has_sums in (
                ("qwen3", "_norm", [False, False]), ("gemma3", "k_norm", [True, False]),
                ("olmo2", "q_", [False, True])):
            with self.subTest(name):
                model = make_model(name)
                vary_norms(model)
                for key, p in model.named_parameters():
                    p.requires_grad_("self_attn" not in key or part not in key)
                expected = step_of_training(model)
                patched(self, model)
                sums = []
                with support.seen_args(lambda function, args: function == "rope_backward" and sums.append([
                        bool(view.data) for norm in [args.norm.contents] for view in (
                            norm.grad_q_weight, norm.grad_k_weight)])):
                    actual = step_of_training(model)
                self.assertEqual(sums, 2 * [has_sums])
                self.assert_steps_alike(actual, expected, torch.float32)
                unpatch(model)

    def test_norms_that_autocast_widens(self):
        """Weights of F32 beside q of 16 bits: the model's own norms return F32."""
        model = make_model("qwen3")
        vary_norms(model)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = step_of_training(model)
            patched(self, model)
            actual, seen = launches(lambda: step_of_training(model))
        self.assertEqual(seen, 2 * [("rope_forward", False)] + 2 * [("rope_backward", False)])
        self.assert_steps_alike(actual, expected, torch.bfloat16)

    def test_norms_and_other_derivatives(self):
        """In forward mode the model's norms run. Gradients have no gradients."""
        model = make_model("qwen3")
        vary_norms(model)
        x = model.get_input_embeddings()(torch.randint(1, 97, (2, 13))).detach()

        def logits(x):
            return model(inputs_embeds=x, use_cache=False).logits

        expected = torch.func.jvp(logits, (x,), (x.sin(),))[1]
        patched(self, model)
        self.assertLess(distance(torch.func.jvp(logits, (x,), (x.sin(),))[1], expected), 1e-4)
        x.requires_grad_()
        grad, = torch.autograd.grad(logits(x).square().mean(), x, create_graph=True)
        with self.assertRaisesRegex(NotImplementedError, "norm_rotary: its derivative is not differentiable"):
            grad.sum().backward()

    def test_norms_that_are_not_as_the_model_has_them(self):
        for calls in (torch.no_grad(), torch.enable_grad()):
            with self.subTest(calls), calls:
                self.check_norms_that_are_not_as_the_model_has_them()

    def check_norms_that_are_not_as_the_model_has_them(self):
        model = patched(self, make_model("qwen3"))
        attention = model.model.layers[0].self_attn

        def rotate():
            with rotations() as seen:
                model(torch.ones(2, 13, dtype=torch.int64))
            return seen

        self.assertEqual(rotate(), [True, True])
        shapes = []
        hook = attention.k_norm.register_forward_hook(lambda module, inputs, output: shapes.append(output.shape))
        self.assertEqual(rotate(), [False, True])
        self.assertEqual(shapes, [(2, 13, 2, 32)])
        hook.remove()
        hook = attention.q_norm.register_full_backward_hook(lambda module, inputs, outputs: None)
        self.assertEqual(rotate(), [False, True])
        hook.remove()
        self.assertEqual(rotate(), [True, True])
        attention.q_norm = torch.nn.Identity()
        self.assertEqual(rotate(), [False, True])

    def test_norms_over_all_heads_and_tensor_parallelism(self):
        model = make_model("olmo2")
        model._tp_size = 2
        with self.assertRaisesRegex(ValueError, "Olmo2Attention norms q and k over all heads .* are not patched"):
            patch(model)
        self.assertFalse([key for m in model.modules() for key in m.__dict__ if "_librope" in key])
        model._tp_size = 1
        patched(self, model)
        for layer in model.model.layers:  # half of the heads, as on one of two ranks
            for name in ("q_proj", "k_proj", "v_proj"):
                projection = getattr(layer.self_attn, name)
                projection.weight = torch.nn.Parameter(projection.weight[:projection.out_features // 2])
        with torch.no_grad(), self.assertRaisesRegex(
                ValueError, "Olmo2RMSNorm is over all heads of a token, 64 channels, of which this rank has 32"):
            model(torch.randint(1, 97, (2, 13)))
        other = make_model("qwen3")  # norms of single heads are not affected
        other._tp_size = 2
        patched(self, other)

    def test_norms_over_all_heads_and_distributed_tensors(self):
        from torch.distributed import destroy_process_group, init_process_group
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor, Shard
        init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        self.addCleanup(destroy_process_group)
        for name, is_refused in (("tp", True), ("fsdp", False)):
            with self.subTest(name):
                model = make_model("olmo2")
                projection = model.model.layers[1].self_attn.q_proj
                mesh = DeviceMesh("cpu", [0], mesh_dim_names=(name,))
                projection.weight = torch.nn.Parameter(DTensor.from_local(projection.weight.detach(), mesh, [Shard(0)]))
                if is_refused:
                    with self.assertRaisesRegex(ValueError, "tensor-parallel model a rank may have a part of them"):
                        patch(model)
                else:
                    patched(self, model)

    def test_norms_behind_the_rotation_that_have_hooks(self):
        model = patched(self, make_model("llama4"))
        ids = torch.randint(1, 97, (2, 13))
        with torch.no_grad():
            expected = model(ids).logits.double()
            shapes = []
            norm = model.model.layers[2].self_attn.qk_norm
            norm.register_forward_hook(lambda module, inputs, output: shapes.append(output.shape))
            with rotations() as seen:
                actual = model(ids).logits.double()
        self.assertEqual(seen, [True, False])
        self.assertEqual(shapes, [(2, 13, 4, 16), (2, 13, 2, 16)])
        self.assertLess(distance(actual, expected), TOLERANCES[torch.float32][0])

    def test_temperature(self):
        for device in DEVICES:
            for dtype in (torch.float32, torch.bfloat16):
                with self.subTest(device=device, dtype=dtype):
                    model = make_model("ministral3", device, dtype)
                    ids = torch.randint(1, 97, (2, 13), device=device)
                    positions = torch.stack([torch.arange(13), torch.arange(13) * 3 + 5]).to(device)
                    calls = [dict(), dict(position_ids=positions), dict(position_ids=positions[1:])]
                    with torch.no_grad():
                        expected = [model(ids, **call).logits.double() for call in calls]
                    gradients = run(model, position_ids=positions)[1]
                    patched(self, model)
                    for call, logits in zip(calls, expected):
                        with torch.no_grad():
                            self.assertEqual(factors(lambda: model(ids, **call)), [True, True])
                            self.assertLess(distance(model(ids, **call).logits.double(), logits), TOLERANCES[dtype][0])
                    self.assertEqual(factors(lambda: run(model)), [True, True, True, True])
                    self.assertLess(
                        distance(run(model, position_ids=positions)[1], gradients), TOLERANCES[dtype][1])
                    if dtype == torch.float32:  # the comparison detects that it is left out
                        model.config.rope_parameters["llama_4_scaling_beta"] = 0.0
                        self.assertGreater(distance(model(ids).logits.double(), expected[0]), 0.01)
                    unpatch(model)

    def test_temperature_where_a_part_is_patched(self):
        model = make_model("ministral3")
        before = run(model)
        attentions = [layer.self_attn for layer in model.model.layers]
        for parts in ([model.model.rotary_emb], attentions, [model.model.rotary_emb, attentions[1]]):
            for part in parts:
                patched(self, part)
            for actual, expected, tolerance in zip(run(model), before, TOLERANCES[torch.float32]):
                self.assertLess(distance(actual, expected), tolerance)
            for part in parts:
                unpatch(part)

    def test_temperature_compiled_in_one_graph(self):
        torch._dynamo.reset()
        model = make_model("ministral3")
        ids = torch.randint(1, 97, (2, 13))
        expected = model(ids).logits.double()
        compiled = torch.compile(patched(self, model), backend="aot_eager", fullgraph=True)
        with torch.no_grad():
            self.assertEqual(factors(lambda: compiled(ids, use_cache=False)), [True, True])
            actual = compiled(ids, use_cache=False).logits.double()
        self.assertLess(distance(actual, expected), TOLERANCES[torch.float32][0])
        self.assertEqual(
            factors(lambda: compiled(ids, use_cache=False).logits.square().mean().backward()), [True] * 4)

    def test_what_is_in_place_of_positions_is_of_no_other_use(self):
        with self.assertRaises(TypeError):
            torch.ones(2) + librope.transformers._Multiplied()

    def test_temperature_of_transforms(self):
        model = make_model("ministral3")
        parameters = dict(model.named_parameters())
        ids = torch.randint(1, 97, (2, 13))

        def loss(values):
            logits = torch.func.functional_call(model, values, (ids,), dict(use_cache=False)).logits
            return logits.square().mean()

        expected = torch.func.grad(loss)(parameters)
        patched(self, model)
        actual = torch.func.grad(loss)(parameters)
        self.assertFalse(torch.equal(actual["lm_head.weight"], expected["lm_head.weight"]))
        for name, gradient in actual.items():
            self.assertLess(distance(gradient, expected[name]), TOLERANCES[torch.float32][1], name)

    def test_gradients_of_the_temperature_have_gradients(self):
        model = make_model("ministral3")
        weight = model.model.layers[0].self_attn.q_proj.weight

        ids = torch.randint(1, 97, (2, 13))

        def second():
            loss = model(ids).logits.square().mean()
            gradient, = torch.autograd.grad(loss, weight, create_graph=True)
            return torch.autograd.grad(gradient.square().sum(), weight)[0]

        expected = second()
        for module in (model.model.rotary_emb, *[layer.self_attn for layer in model.model.layers]):  # not the MLPs
            patched(self, module)
        self.assertLess(distance(second(), expected), TOLERANCES[torch.float32][1])

    def test_what_is_in_place_of_tables_moves(self):
        # accelerate moves the arguments of a layer to its device in this way.
        def move(x):
            if isinstance(x, (tuple, list)):
                return type(x)(map(move, x))
            return x.to("cpu", non_blocking=True) if hasattr(x, "to") else x

        for name in ("llama4", "ministral3"):
            with self.subTest(name):
                model = make_model(name)
                before = run(model)
                patched(self, model)
                for layer in model.model.layers:
                    layer.register_forward_pre_hook(
                        lambda module, inputs, keywords: (move(inputs), {k: move(x) for k, x in keywords.items()}),
                        with_kwargs=True)
                self.assertLess(distance(run(model)[0], before[0]), TOLERANCES[torch.float32][0])

    def test_norms_compiled_in_one_graph(self):
        from test_torch import has_compiler
        if not has_compiler():
            self.skipTest("torch.compile does not work here")
        model = make_model("qwen3")
        ids = torch.randint(1, 97, (2, 13))
        with torch.no_grad():
            expected = model(ids, use_cache=False).logits.double()
            patched(self, model)
            with rotations() as seen:
                actual = torch.compile(model, fullgraph=True)(ids, use_cache=False).logits.double()
        self.assertEqual(seen, [True, True])
        self.assertLess(distance(actual, expected), TOLERANCES[torch.float32][0])

    def test_positions_of_each_sequence_and_a_cache(self):
        model = make_model("llama")
        positions = torch.stack([torch.arange(13), torch.arange(13) * 3 + 5])
        expected = run(model, position_ids=positions)
        patched(self, model)
        self.assertLess(distance(run(model, position_ids=positions)[0], expected[0]), TOLERANCES[torch.float32][0])
        ids = torch.randint(1, 97, (2, 6))
        with torch.no_grad():
            generated = model.generate(ids, max_new_tokens=8, do_sample=False)
            unpatch(model)
            self.assertTrue(torch.equal(generated, model.generate(ids, max_new_tokens=8, do_sample=False)))

    def test_other_models_stay_as_they_are(self):
        modeling = transformers.models.llama.modeling_llama
        one, two, other = (make_model("llama") for _ in range(3))
        before = run(other)[0]
        for model in (one, two):
            patched(self, model)
            rotation = modeling.apply_rotary_pos_emb
            self.assertTrue(torch.equal(run(other)[0], before))
            self.assertFalse(torch.equal(run(model)[0], before))
        unpatch(one)
        for model in (one, other):
            self.assertTrue(torch.equal(run(model)[0], before))
        self.assertFalse(torch.equal(run(two)[0], before))
        unpatch(two)
        self.assertIs(modeling.apply_rotary_pos_emb, rotation)  # it stays, so that graphs of other models stay valid
        for model in (one, two, other):
            self.assertTrue(torch.equal(run(model)[0], before))
            self.assertFalse([name for m in model.modules() for name in m.__dict__ if "_librope" in name])

    def test_a_patched_model_that_goes_away(self):
        """It is freed with its last reference, and no other model notices: not one that is being compiled."""
        model, other = patch(make_model("qwen3")), make_model("qwen3")
        run(model)
        references = [weakref.ref(p) for p in model.parameters()]
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        model.zero_grad()

        def backend(graph, inputs):
            models.clear()
            self.assertFalse([r for r in references if r() is not None])
            return graph.forward

        models = [model]
        del model
        torch._dynamo.reset()
        with torch.no_grad():
            expected = other(torch.ones(1, 7, dtype=torch.int64)).logits
            compiled = torch.compile(other, backend=backend)(torch.ones(1, 7, dtype=torch.int64)).logits
        self.assertFalse(models)
        self.assertTrue(torch.equal(compiled, expected))

    def test_code_that_is_not_of_transformers(self):
        """A checkpoint's own file has the names of transformers' file. Code that computes something else is left."""
        modeling = importlib.import_module("transformers.models.llama.modeling_llama")
        with open(modeling.__file__, encoding="utf-8") as file:
            source = file.read()
        name = "transformers_modules.checkpoint.modeling_llama"
        for old, new, left in (
                ("self.act_fn(self.gate_proj(x)) * self.up_proj(x)", "self.act_fn(self.gate_proj(x)) * x.mean()",
                 ["LlamaMLP"]),
                ("self.act_fn(self.gate_proj(x)) * self.up_proj(x)",
                 "self.act_fn(self.gate_proj(x)).clamp(max=9) * self.up_proj(x)", ["LlamaMLP"]),
                ("torch.cat((-x2, x1), dim=-1)", "torch.cat((x2, -x1), dim=-1)",
                 ["LlamaAttention", "LlamaRotaryEmbedding"]),
                ("(k * cos)", "(0.5 * k * cos)", ["LlamaAttention", "LlamaRotaryEmbedding"]),
                ("position_ids[:, None, :].float()", "(position_ids[:, None, :] // 2).float()", [])):
            with self.subTest(new):
                self.assertEqual(source.count(old), 1)
                module = types.ModuleType(name)
                module.__package__, module.__file__ = "transformers.models.llama", modeling.__file__
                sys.modules[name] = module
                self.addCleanup(sys.modules.pop, name, None)
                exec(compile(source.replace(old, new), "modeling_llama.py", "exec"), module.__dict__)
                config = make_config("llama")
                config._attn_implementation = "eager"
                torch.manual_seed(1)
                model = module.LlamaForCausalLM(config)
                before = run(model)
                texts = []
                patch(model, report=texts.append)
                self.assertEqual(texts, [report(model)])
                self.assertEqual([line.split()[0] for line in texts[0].splitlines() if " left " in line], left)
                for actual, expected, tolerance in zip(run(model), before, TOLERANCES[torch.float32]):
                    self.assertLess(distance(actual, expected), tolerance)
                unpatch(model)
                if not left:
                    patch(model, strict=True)
                    continue
                with self.assertRaisesRegex(ValueError, f"(?s)is not patched as a whole:.*{left[0]}.* left "):
                    patch(model, strict=True)
                self.assertFalse([key for m in model.modules() for key in m.__dict__ if "_librope" in key])
                for actual, expected in zip(run(model), before):
                    self.assertTrue(torch.equal(actual, expected))

    def test_methods_that_are_not_of_transformers(self):
        """Methods of subclasses and of single modules, and hooks of activations, are respected."""
        modeling = importlib.import_module("transformers.models.llama.modeling_llama")

        class MLP(modeling.LlamaMLP):
            def forward(self, x):
                return 2 * super().forward(x)

        class Counting(modeling.LlamaMLP):
            def forward(self, x):
                self.calls = getattr(self, "calls", 0) + 1
                return super().forward(x)

        class RotaryEmbedding(modeling.LlamaRotaryEmbedding):
            def forward(self, x, position_ids):
                cos, sin = super().forward(x, position_ids)
                return cos, torch.cat((sin[..., :8], -sin[..., 8:]), -1)

        config = make_config("llama")

        def wrapped(module):
            forward = module.forward
            module.forward = lambda *arguments: [2 * x for x in forward(*arguments)]
            return module

        x, positions = torch.randn(1, 5, 64), torch.arange(5)[None]
        for make, why in (
                (lambda: MLP(config), "it does not compute"), (lambda: Counting(config), "it changes its module"),
                (lambda: wrapped(modeling.LlamaMLP(config)), "it has a forward of its own"),
                (lambda: RotaryEmbedding(config), "no function is recognised that rotates"),
                (lambda: wrapped(modeling.LlamaRotaryEmbedding(config)), "it has a forward of its own")):
            module = make()
            arguments = (x, positions) if hasattr(module, "inv_freq") else (x,)
            before = module(*arguments)
            with self.assertRaisesRegex(ValueError, f"(?s)nothing to patch.* left *{why}"):
                patch(module)
            self.assertIn(why, report(module))
            for actual, expected in zip(module(*arguments), before):
                self.assertTrue(torch.equal(actual, expected))
        attention = modeling.LlamaAttention(config, 0)
        with self.assertRaisesRegex(ValueError, "(?s)nothing to patch.* left *its cos and sin are made by what is not"):
            patch(attention)
        mlp = modeling.LlamaMLP(config)
        expected = mlp(x)
        self.assertFalse(torch.equal(patched(self, mlp)(x), 2 * expected))
        hook = mlp.act_fn.register_forward_hook(lambda module, inputs, output: 2 * output)  # after it was patched
        self.assertTrue(torch.equal(mlp(x), 2 * expected))
        hook.remove()
        mlp.act_fn = torch.nn.GELU()
        self.assertTrue(torch.equal(mlp(x), unpatch(mlp)(x)))
        mlp.act_fn = type("SiLU", (torch.nn.GELU,), {})()
        with self.assertRaisesRegex(ValueError, "nothing to patch"):
            patch(mlp)

    def test_functions_that_another_program_has_replaced(self):
        modeling = importlib.import_module("transformers.models.mistral.modeling_mistral")
        own = modeling.apply_rotary_pos_emb
        model = make_model("mistral")
        self.addCleanup(setattr, modeling, "apply_rotary_pos_emb", own)
        modeling.apply_rotary_pos_emb = functools.wraps(own)(lambda *arguments: own(*arguments))
        before = run(model)[0]
        with self.assertRaisesRegex(ValueError, "apply_rotary_pos_emb: another program has replaced it"):
            patch(model, strict=True)
        self.assertTrue(torch.equal(run(model)[0], before))
        self.assertFalse([name for m in model.modules() for name in m.__dict__ if "_librope" in name])

    def test_copies_that_share_the_attributes(self):
        """Replicas of nn.DataParallel and shallow copies have parameters of their own."""
        for name in ("llama", "qwen3", "deepseek_v3", "ministral3"):
            with self.subTest(name):
                model = patched(self, make_model(name))
                ids = torch.ones(1, 7, dtype=torch.int64)
                other = copy.deepcopy(model)
                with torch.no_grad():
                    for p in other.parameters():
                        p.mul_(0.75)
                    expected = other(ids).logits
                    replica = self.replica_of(model, other, lambda m: m._replicate_for_data_parallel())
                    self.assertTrue(torch.equal(replica(ids).logits, expected))
                    shallow = self.replica_of(model, other, copy.copy)
                    self.assertTrue(torch.equal(shallow(ids).logits, expected))
                    self.assertFalse(torch.equal(model(ids).logits, expected))

    def replica_of(self, model, values, make):
        """A replica of the modules, with other parameters."""
        replica = make(model)
        replica._modules = dict(replica._modules)
        replica._parameters = dict(values._parameters)
        for name, child in model._modules.items():
            if child is not None:
                replica._modules[name] = self.replica_of(child, values._modules[name], make)
        return replica

    def test_positions_that_are_no_integers(self):
        for name in ("llama", "qwen3", "ministral3"):
            with self.subTest(name):
                model = make_model(name)
                for module in list(model.modules()):
                    if type(module).__name__.endswith("MLP"):
                        module.act_fn = torch.nn.Tanh()  # is not replaced
                positions = torch.arange(13)[None] / 2
                expected = run(model, position_ids=positions)[0]
                actual = run(patched(self, model), position_ids=positions)[0]
                self.assertLess(distance(actual, expected), TOLERANCES[torch.float32][0])

    def test_frequencies_that_change_under_a_graph(self):
        """A compiled model reads them at each call, however they were changed, and is compiled once."""
        for name in ("llama", "qwen3", "gemma3", "ministral3", "llama4") if IS_LONG else ("gemma3", "ministral3"):
            with self.subTest(name):
                torch._dynamo.reset()
                model = make_model(name)
                twin = copy.deepcopy(model)
                compiled = torch.compile(patched(self, model), backend=self.counting("aot_eager"), fullgraph=True)
                ids = torch.randint(1, 97, (2, 13))

                def halve(buffer):
                    buffer.mul_(0.5)

                def through_data(buffer):
                    buffer.data = buffer.data * 1.5

                def through_numpy(buffer):
                    buffer.numpy()[:] *= 0.75

                for change in (lambda buffer: None, halve, through_data, through_numpy):
                    for m in (model, twin):
                        for buffer_name, buffer in m.named_buffers():
                            if buffer_name.endswith("inv_freq") and "original" not in buffer_name:
                                change(buffer)
                    with torch.no_grad():
                        expected = twin(ids, use_cache=False).logits
                        for call in (model, compiled):
                            self.assertLess(
                                distance(call(ids, use_cache=False).logits, expected), TOLERANCES[torch.float32][0])
                self.assertEqual(self.num_graphs, 1)
                unpatch(model)

    def counting(self, backend):
        self.num_graphs = 0
        inner = torch._dynamo.lookup_backend(backend)

        def compile_and_count(graph, inputs):
            self.num_graphs += 1
            return inner(graph, inputs)

        return compile_and_count

    def test_parity_of_every_gradient(self):
        """Gradients of parameters around the rotation, too: with each attention, wherever the model equals itself."""
        names = [name for name in MODELS if not name.startswith("llama4")] if IS_LONG else ["qwen3", "gemma3", "cohere"]
        for name, attention, dtype in itertools.product(
                names, ("sdpa", "eager"), (torch.float32, torch.bfloat16) if IS_LONG else (torch.float32,)):
            for device in DEVICES:
                with self.subTest(name, attention=attention, dtype=dtype, device=device):
                    model = make_model(name, device, dtype)
                    model.set_attn_implementation(attention)
                    vary_norms(model)
                    expected, again = step_of_training(model), step_of_training(model)
                    is_same = [torch.equal(x, again[1][key]) for key, x in expected[1].items()]
                    if not all(is_same):
                        continue  # by itself
                    patched(self, model, parity=True)
                    actual, seen = launches(lambda: step_of_training(model))
                    if name != "olmo2" or dtype == torch.float32:
                        self.assertEqual(seen, 2 * [("rope_forward", False)] + 2 * [("rope_backward", False)])
                    self.assertTrue(torch.equal(actual[0], expected[0]))
                    for key, grad in actual[1].items():
                        self.assertTrue(torch.equal(grad, expected[1][key]), key)
                    unpatch(model)

    def test_attentions_of_other_code(self):
        """Tables of a patched module are tensors for code that is not known."""
        model = make_model("llama")
        before = run(model)
        modeling = importlib.import_module("transformers.models.llama.modeling_llama")
        own = modeling.LlamaAttention.forward
        used = []

        def forward(attention, hidden_states, position_embeddings=None, **keywords):
            cos, sin = position_embeddings
            used.append((cos.dtype, tuple(sin.shape), len(cos), (cos * 1.0)[..., :1].numel(), (2 - sin).dim()))
            cos, sin = torch.stack((cos, sin)).to(torch.float64).unbind()
            turned = cos[:, None].to(hidden_states.dtype), sin[:, None].to(hidden_states.dtype)
            return own(attention, hidden_states, position_embeddings=[x[:, 0] for x in turned], **keywords)

        self.addCleanup(setattr, modeling.LlamaAttention, "forward", own)
        modeling.LlamaAttention.forward = forward
        actual = run(patched(self, model))
        self.assertEqual(used[0], (torch.float32, (1, 13, 16), 1, 13, 3))
        for a, b in zip(actual, before):
            self.assertLess(distance(a, b), TOLERANCES[torch.float32][1])

    def test_frequencies_that_depend_on_the_length_in_a_graph(self):
        """The lengths of a compiled model go up and down beyond the one that the model was trained for."""
        for name in ("llama, dynamic", "phi3"):
            with self.subTest(name):
                torch._dynamo.reset()
                model = make_model(name)
                twin = copy.deepcopy(model)
                compiled = torch.compile(patched(self, model), backend="aot_eager")
                for length in (5, 31, 12, 5, 40):
                    ids = torch.arange(1, length + 1)[None]
                    with torch.no_grad():
                        self.assertLess(
                            distance(compiled(ids, use_cache=False).logits, twin(ids, use_cache=False).logits),
                            TOLERANCES[torch.float32][0])
                unpatch(model)

    def test_all_or_nothing(self):
        model = make_model("llama")
        model.model.rotary_emb.rope_type = {"no_such_layer": "default"}
        classes = list(map(type, model.modules()))
        with self.assertRaisesRegex(ValueError, "(?s)LlamaMLP +2 +replaced.*LlamaRotaryEmbedding +1 +left"):
            patch(model, strict=True)
        self.assertFalse([name for m in model.modules() for name in m.__dict__ if "_librope" in name])
        self.assertEqual(list(map(type, model.modules())), classes)

    def test_a_modeling_module(self):
        for family in ("llama", "deepseek_v3", "qwen3", "llama4", "ministral3"):
            with self.subTest(family):
                modeling = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
                before = run(make_model(family))
                unpatch(patch(make_model(family)))  # functions of the module stay from now on
                originals = {name: (value, dict(vars(value)) if isinstance(value, type) else None)
                             for name, value in vars(modeling).items()}
                patched(self, modeling)
                model = make_model(family)
                rotated = run(model)
                patched(self, model)  # after its class has been patched
                self.assertTrue(torch.equal(run(model)[0], rotated[0]))
                self.assertEqual(any(factors(lambda: run(model))), family == "ministral3")
                unpatch(modeling)
                self.assertTrue(torch.equal(run(model)[0], rotated[0]))
                unpatch(model)
                self.assertTrue(torch.equal(run(model)[0], before[0]))
                for name, (value, members) in originals.items():
                    self.assertIs(getattr(modeling, name), value)
                    if members is not None:
                        self.assertEqual(dict(vars(value)), members, name)
                self.assertLess(distance(rotated[0], before[0]), TOLERANCES[torch.float32][0])
                self.assertFalse(torch.equal(rotated[0], before[0]))

    def test_hooks_that_come_and_go(self):
        # Like accelerate's hook, it replaces forward and calls the previous one.
        def hook(module):
            module._old_forward = module.forward
            module.forward = lambda *arguments, **keywords: module._old_forward(*arguments, **keywords)

        def unhook(module):
            module.forward = module.__dict__.pop("_old_forward")

        model = make_model("llama")
        hooked = [m for m in model.modules() if type(m).__name__ in ("LlamaMLP", "LlamaRotaryEmbedding")]
        before = run(model)[0]
        for order in ("hook patch unpatch unhook", "hook patch unhook unpatch", "patch hook unpatch unhook",
                      "patch hook unhook unpatch"):
            with self.subTest(order):
                is_patched = False
                for step in order.split():
                    if step in ("patch", "unpatch"):
                        is_patched = step == "patch"
                        patched(self, model) if is_patched else unpatch(model)
                    else:
                        for module in hooked:
                            (hook if step == "hook" else unhook)(module)
                    self.assertEqual(torch.equal(run(model)[0], before), not is_patched, step)
                for module in hooked:
                    module.__dict__.pop("forward", None)  # unhook leaves the module so, in accelerate too

    def test_deep_copies_and_gradient_checkpointing(self):
        model = patched(self, make_model("qwen2"))
        expected = run(model)
        twin = copy.deepcopy(model)
        self.addCleanup(unpatch, twin)
        self.assertTrue(torch.equal(run(twin)[0], expected[0]))
        unpatch(model)
        self.assertFalse(torch.equal(run(model)[0], expected[0]))
        self.assertTrue(torch.equal(run(twin)[0], expected[0]))
        twin.train()
        twin.gradient_checkpointing_enable()
        self.assertLess(distance(run(twin)[1], expected[1]), TOLERANCES[torch.float32][1])
        unpatch(twin)
        self.assertTrue(torch.equal(run(twin.eval())[0], run(model)[0]))

    def test_saved_whole(self):
        for name in ("llama", "llama, dynamic", "gemma3", "deepseek_v3", "olmo2", "llama4", "ministral3"):
            with self.subTest(name):
                model = patched(self, make_model(name))
                expected, num_patched = run(model), MODELS[name][2]
                with tempfile.TemporaryFile() as file:
                    torch.save(model, file)
                    file.seek(0)
                    loaded = torch.load(file, weights_only=False)
                for twin in (pickle.loads(pickle.dumps(model)), loaded, copy.deepcopy(model)):
                    self.addCleanup(unpatch, twin)
                    self.assertEqual(sum("_librope_method" in m.__dict__ for m in twin.modules()), num_patched)
                    self.assertTrue(torch.equal(run(twin)[0], expected[0]))
                    unpatch(twin)
                    self.assertFalse([key for m in twin.modules() for key in m.__dict__ if "_librope" in key])
                    self.assertFalse(torch.equal(run(twin)[0], expected[0]))
                self.assertTrue(torch.equal(run(model)[0], expected[0]))
                unpatch(model)
                plain = run(model)
                self.assertTrue(torch.equal(run(twin)[0], plain[0]))

    def test_saved_whole_and_loaded_by_another_process(self):
        model = patched(self, make_model("llama"))
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "model.pt")
            torch.save((model, run(model)[0]), file)
            code = ("import sys, torch; model, expected = torch.load(sys.argv[1], weights_only=False); "
                    "torch.manual_seed(1); "
                    "ids = torch.randint(1, 97, (2, 13)); assert torch.equal(model(ids).logits.double(), expected);"
                    "print(sum('_librope_method' in m.__dict__ for m in model.modules()), 'librope' in sys.modules)")
            done = subprocess.run([sys.executable, "-c", code, file], text=True, stdout=subprocess.PIPE, check=True,
                                  env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
        self.assertEqual(done.stdout.split(), ["3", "True"])

    def test_frequencies_changed_in_place(self):
        model = make_model("llama")
        rotary = model.model.rotary_emb
        before = run(model)[0]
        patched(self, model)

        @torch.inference_mode()
        def replace(values):  # by an inference tensor, which has no version
            rotary.inv_freq = values.clone()

        @torch.inference_mode()
        def halve():
            rotary.inv_freq.mul_(0.5)

        original = rotary.inv_freq.clone()
        for change in (
                lambda: rotary.inv_freq.mul_(0.5), lambda: rotary.inv_freq.copy_(torch.ones_like(rotary.inv_freq)),
                lambda: rotary.inv_freq.data.copy_(original / 4), lambda: setattr(rotary, "attention_scaling", 1.5),
                lambda: replace(original / 8), halve):
            run(model)
            with torch.no_grad():
                change()
            rotated = run(model)[0]
            unpatch(model)
            expected = run(model)[0]
            patch(model)
            self.assertLess(distance(rotated, expected), TOLERANCES[torch.float32][0])
            self.assertGreater(distance(rotated, before), 100 * TOLERANCES[torch.float32][0])

    def test_compiled_in_one_graph(self):
        from test_torch import has_compiler
        if not has_compiler():
            self.skipTest("torch.compile does not work here")
        model = patched(self, make_model("llama"))
        expected = run(model)
        compiled = torch.compile(model, fullgraph=True)
        torch.manual_seed(1)
        ids = torch.randint(1, 97, (2, 13))
        logits = compiled(ids, use_cache=False).logits
        self.assertLess(distance(logits.detach().double(), expected[0]), TOLERANCES[torch.float32][0])

    def test_nothing_to_patch(self):
        with self.assertRaisesRegex(ValueError, "nothing to patch in Linear"):
            patch(torch.nn.Linear(2, 2))
        with self.assertRaisesRegex(ValueError, "nothing to patch in torch"):
            patch(torch)


class ConfigTest(unittest.TestCase):
    def test_the_frequencies_of_the_models(self):
        def ordinal(value):
            return struct.unpack("<i", struct.pack("<f", value))[0]

        for name in MODELS:
            if name.startswith("llama4"):
                continue  # refused
            with self.subTest(name):
                model = make_model(name)
                rotary = next(m for m in model.modules() if type(m).__name__.endswith("RotaryEmbedding"))
                for layer_type in (rotary.rope_type if isinstance(rotary.rope_type, dict) else [None]):
                    prefix = "" if layer_type is None else f"{layer_type}_"
                    theirs = getattr(rotary, prefix + "inv_freq").tolist()
                    arguments = from_hf_config(model.config, layer_type=layer_type)
                    ours = arguments["inv_freq"]
                    self.assertEqual(len(ours), len(theirs))
                    self.assertEqual(arguments["rotary_dim"], 2 * len(theirs))
                    self.assertLessEqual(max(abs(ordinal(a) - ordinal(b)) for a, b in zip(ours, theirs)), 4)
                    self.assertAlmostEqual(
                        arguments["attention_scale"], getattr(rotary, prefix + "attention_scaling"), places=6)


if __name__ == "__main__":
    unittest.main()
