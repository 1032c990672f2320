# SPDX-License-Identifier: Apache-2.0
# test_patched.py - a patched model can be trained, saved, loaded, copied, compiled and unpatched like any other
"""These tests take one small model with random weights for each family that librope.transformers.patch supports.
test_transformers.py tests what patch changes in them."""
from __future__ import annotations

import copy
import functools
import os
import pickle
import signal
import sys
import tempfile
import threading
import unittest

import support

torch, transformers = support.needs("torch", "transformers")
from librope.transformers import patch, unpatch  # noqa: E402
from test_transformers import DEVICES, MODELS, distance, make_model, patched, rotations, run  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

transformers.logging.disable_progress_bar()

# rotation and MLP; norms and two ropes; experts and two styles; complex tables; temperature in the rotation; outside it
STRUCTURES = ("llama", "gemma3", "deepseek_v3", "llama4", "ministral3", "mistral4")
SMALL = 2e-5  # for numbers that differ by the order of operations in fp32
NUM_STEPS = 3


def make_ids(model, length=13):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, 97, (2, length), generator=generator).to(next(model.parameters()).device)


def loss_and_gradients(model, call=None):
    """The loss of predicting the next token, and all gradients in one vector."""
    ids = make_ids(model)
    model.zero_grad(set_to_none=True)
    loss = (model if call is None else call)(ids, labels=ids, use_cache=False).loss
    loss.backward()
    gradients = torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None])
    return loss.detach().double(), gradients


def train(model, call=None):
    """The losses of a few steps, and the parameters after them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for _ in range(NUM_STEPS):
        losses.append(loss_and_gradients(model, call)[0])
        optimizer.step()
    return torch.stack(losses), torch.cat([p.detach().flatten() for p in model.parameters()])


def num_patched(model):
    return sum("_librope_method" in module.__dict__ for module in model.modules())


class Adapter(torch.nn.Module):
    """A projection with a low-rank addition, like peft's."""

    def __init__(self, base):
        super().__init__()
        self.base_layer, self.in_features, self.out_features = base, base.in_features, base.out_features
        generator = torch.Generator().manual_seed(base.out_features)
        self.a = torch.nn.Parameter(torch.randn(2, base.in_features, generator=generator) / 8)
        self.b = torch.nn.Parameter(torch.randn(base.out_features, 2, generator=generator) / 8)

    @property
    def weight(self):
        return self.base_layer.weight

    def forward(self, x):
        return self.base_layer(x) + x @ self.a.T @ self.b.T


class Quantised(torch.nn.Module):
    """A projection with a weight of 8-bit codes."""

    def __init__(self, base):
        super().__init__()
        self.in_features, self.out_features = base.in_features, base.out_features
        scale = base.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (base.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight * self.scale)


def replace_projections(model, cls):
    for module in list(model.modules()):
        if type(module).__name__.endswith(("MLP", "Attention")):
            for name, child in list(module.named_children()):
                if isinstance(child, torch.nn.Linear):
                    setattr(module, name, cls(child))


class TestCase(unittest.TestCase):
    def assert_near(self, actual, expected, tolerance=SMALL):
        for a, b in zip(actual, expected):
            self.assertLess(distance(a, b), tolerance)

    def assert_same(self, actual, expected):
        for a, b in zip(actual, expected):
            self.assertTrue(torch.equal(a, b))


def for_each(names):
    """Runs a method of (self, name, device) for models on each device."""
    def decorate(check):
        @functools.wraps(check)
        def test(self):
            for device in DEVICES:
                for name in names:
                    with self.subTest(name, device=device):
                        check(self, name, device)

        return test

    return decorate


class FamiliesTest(TestCase):
    @for_each(MODELS)
    def test_training(self, name, device):
        model = make_model(name, device).train()
        twin = copy.deepcopy(model)
        before, expected = loss_and_gradients(model), train(twin)
        patched(self, model)
        with rotations() as seen:
            rotated = loss_and_gradients(model)
        self.assertTrue(seen)
        self.assert_near(rotated, before)
        unpatch(model)
        self.assert_same(loss_and_gradients(model), before)
        losses, parameters = train(patched(self, model))
        self.assert_near((losses, parameters), expected)
        self.assertGreater((losses[0] - losses[-1]).item(), 10 * SMALL * losses[0].item())
        unpatch(model)
        self.assert_near(loss_and_gradients(model), loss_and_gradients(twin), 10 * SMALL)

    @for_each(MODELS)
    def test_bfloat16_is_as_near_to_fp32_as_the_original(self, name, device):
        model = make_model(name, device, torch.bfloat16).train()
        exact = loss_and_gradients(copy.deepcopy(model).float())
        original = distance(loss_and_gradients(model)[1], exact[1])
        loss, gradients = loss_and_gradients(patched(self, model))
        self.assertLess(distance(loss, exact[0]), 2**-8)  # an ulp of a number in bf16
        self.assertLess(distance(gradients, exact[1]), 2 * original)

    @for_each(MODELS)
    def test_saved_and_loaded(self, name, device):
        model = make_model(name, device)
        state, before = model.state_dict(), run(model)[0]
        rotated = run(patched(self, model))[0]
        self.assertEqual(list(model.state_dict()), list(state))
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            loaded = type(model).from_pretrained(
                folder, attn_implementation="eager", dtype=torch.float32).to(device)
            modeling = sys.modules[type(model).__module__]
            patched(self, modeling)
            patched_before = type(model).from_pretrained(
                folder, attn_implementation="eager", dtype=torch.float32).to(device)
            self.assertTrue(torch.equal(run(patched_before)[0], rotated))
            unpatch(modeling)
        self.assertEqual(num_patched(loaded), 0)
        self.assertTrue(torch.equal(run(loaded)[0], before))
        self.assertTrue(torch.equal(run(patched(self, loaded))[0], rotated))
        with torch.no_grad():
            for p in loaded.parameters():
                p.zero_()
        self.assertEqual(loaded.load_state_dict(state, assign=True), ([], []))
        self.assertTrue(torch.equal(run(loaded)[0], rotated))

    @for_each(MODELS)
    def test_copies_and_pickles(self, name, device):
        model = patched(self, make_model(name, device))
        expected, count = loss_and_gradients(model), num_patched(model)
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            self.addCleanup(unpatch, twin)
            self.assertEqual(num_patched(twin), count)
            self.assert_same(loss_and_gradients(twin), expected)
            train(twin)
            self.assertFalse(torch.equal(loss_and_gradients(twin)[0], expected[0]))
            self.assert_same(loss_and_gradients(model), expected)
        unpatch(model)
        with rotations() as seen:
            plain = loss_and_gradients(model)
        self.assertFalse(seen)
        copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        for twin in copies:  # they contain nothing of the patch
            self.assertEqual(num_patched(twin), 0)
            self.assert_same(loss_and_gradients(twin), plain)


class StructuresTest(TestCase):
    @for_each(STRUCTURES)
    def test_distributed_data_parallel(self, name, device):
        expected = train(make_model(name, device).train())
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        try:
            for is_wrapped_first in (False, True):
                model = make_model(name, device).train()
                if not is_wrapped_first:
                    patched(self, model)
                parallel = DistributedDataParallel(model)
                if is_wrapped_first:
                    self.assertIs(patched(self, parallel), parallel)
                self.assertGreater(num_patched(parallel), 0)
                self.assert_near(train(model, parallel), expected)
                unpatch(parallel)
                self.assertEqual(num_patched(model), 0)
        finally:
            torch.distributed.destroy_process_group()

    def test_fully_sharded(self):
        """FSDP gives modules classes of its own, before or after they are patched."""
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)
        mesh = DeviceMesh("cpu", [0], mesh_dim_names=("fsdp",))
        for name in ("llama", "qwen3"):
            expected = loss_and_gradients(make_model(name))
            for is_sharded_first in (False, True):
                with self.subTest(name, is_sharded_first=is_sharded_first):
                    model = make_model(name)
                    if not is_sharded_first:
                        patched(self, model)
                    for layer in model.model.layers:
                        for module in (layer.mlp, layer.self_attn, layer):
                            fully_shard(module, mesh=mesh)
                    fully_shard(model, mesh=mesh)
                    if is_sharded_first:
                        patched(self, model)
                    self.assertEqual(num_patched(model), MODELS[name][2])
                    with rotations() as seen:
                        self.assert_near([self.sharded_loss(model)], expected)
                    self.assertTrue(seen)
                    unpatch(model)
                    with rotations() as seen:
                        self.assertTrue(torch.equal(self.sharded_loss(model), expected[0]))
                    self.assertFalse(seen)

    def sharded_loss(self, model):
        ids = make_ids(model)
        loss = model(ids, labels=ids, use_cache=False).loss
        loss.backward()
        return loss.detach().double()

    def test_adapters(self):
        """Low-rank adapters replace projections, before the model is patched or afterwards."""
        for name in ("phi3", "qwen3"):
            for is_adapted_first in (False, True):
                with self.subTest(name, is_adapted_first=is_adapted_first):
                    model = make_model(name)
                    twin = copy.deepcopy(model)
                    if not is_adapted_first:
                        patched(self, model)
                    for m in (model, twin):
                        replace_projections(m, Adapter)
                    patched(self, model)
                    self.assertEqual(num_patched(model), MODELS[name][2])
                    self.assert_near(loss_and_gradients(model), loss_and_gradients(twin))

    def test_quantised_projections(self):
        """Their weights are codes: they are called, and nothing is read from them."""
        for name in ("llama", "deepseek_v3"):
            for is_quantised_first in (False, True):
                with self.subTest(name, is_quantised_first=is_quantised_first):
                    model = make_model(name)
                    twin = copy.deepcopy(model)
                    if not is_quantised_first:
                        patched(self, model)
                    for m in (model, twin):
                        replace_projections(m, Quantised)
                    patched(self, model)
                    self.assertEqual(num_patched(model), MODELS[name][2])
                    self.assert_near(loss_and_gradients(model), loss_and_gradients(twin))

    def test_functional_call(self):
        model = make_model("qwen3")
        ids = make_ids(model)
        values = {name: 0.75 * p.detach() for name, p in model.named_parameters()}

        def logits():
            with torch.no_grad():
                return torch.func.functional_call(model, values, (ids,), {"use_cache": False}).logits

        expected = logits()
        patched(self, model)
        self.assert_near([logits()], [expected])
        self.assertGreater(distance(model(ids).logits.detach(), expected), 0.01)

    def test_models_that_are_stacked(self):
        """torch's recipe for ensembles also stacks buffers, and with them cos and sin."""
        models = [make_model("llama").requires_grad_(False) for _ in range(2)]
        with torch.no_grad():
            models[1].model.rotary_emb.inv_freq.mul_(0.5)
        ids = make_ids(models[0])
        expected = torch.stack([model(ids, use_cache=False).logits for model in models])
        for model in models:
            patched(self, model)
        values = torch.func.stack_module_state(models)

        def logits(*values):
            return torch.func.functional_call(models[0], values, (ids,), {"use_cache": False}).logits

        with rotations() as seen:
            actual = torch.func.vmap(logits)(*values)
        self.assertTrue(seen)
        self.assert_near([actual], [expected])
        self.assertGreater(distance(expected[0], expected[1]), 0.01)

    def test_exported(self):
        model = make_model("qwen3").requires_grad_(False)
        ids = make_ids(model)
        expected = model(ids, use_cache=False).logits
        program = torch.export.export(patched(self, model), (ids,), {"use_cache": False}, strict=False)
        with rotations() as seen:
            self.assert_near([program.module()(ids, use_cache=False).logits], [expected])
        self.assertEqual(seen, [True, True])

    def test_patched_before_its_weights_are_loaded(self):
        for name in ("qwen3", "gemma3"):
            with self.subTest(name):
                model = make_model(name)
                with torch.device("meta"):
                    empty = type(model)(model.config)
                empty.config._attn_implementation = "eager"
                patched(self, empty)
                self.assertEqual(num_patched(empty), MODELS[name][2])
                empty.to_empty(device="cpu")
                empty.tie_weights()
                empty.load_state_dict(model.state_dict())
                for (_, theirs), (_, own) in zip(empty.named_buffers(), model.named_buffers()):
                    theirs.copy_(own)
                self.assert_near(loss_and_gradients(empty.eval()), loss_and_gradients(model))

    def test_patched_while_another_thread_runs_it(self):
        model = make_model("qwen3")
        ids = make_ids(model)
        with torch.no_grad():
            expected = model(ids).logits
        results, is_over = [], threading.Event()

        def run_on():
            with torch.no_grad():
                while not is_over.is_set():
                    results.append(model(ids).logits)

        threads = [threading.Thread(target=run_on) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            while len(results) < 8:
                patch(model)
                patch(model)
                unpatch(model)
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        self.assert_near(results, [expected] * len(results))
        self.assertTrue(torch.equal(model(ids).logits, expected))

    @unittest.skipUnless(hasattr(os, "fork") and sys.platform == "linux", "needs fork")
    def test_patched_in_a_fork(self):
        """Also if another thread held the lock."""
        from librope import _recognise
        is_held, is_over = threading.Event(), threading.Event()

        def hold():
            with _recognise.lock:
                is_held.set()
                is_over.wait()

        model = make_model("qwen2")
        thread = threading.Thread(target=hold)
        thread.start()
        is_held.wait()
        child = os.fork()
        if not child:
            code = 1
            try:
                signal.alarm(60)
                _recognise._results.clear()
                torch.set_num_threads(1)
                code = num_patched(patch(model)) != 3
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        is_over.set()
        thread.join()
        self.assertEqual(status, 0)

    @for_each(STRUCTURES)
    def test_gradient_checkpointing(self, name, device):
        for use_reentrant in (False, True):
            model = make_model(name, device).train()
            expected = train(copy.deepcopy(model))
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant})
            if use_reentrant:
                model.enable_input_require_grads()
            patched(self, model)
            self.assert_near(train(model), expected)
            unpatch(model)

    @for_each(STRUCTURES)
    def test_compiled_in_one_graph(self, name, device):
        # This backend traces both directions, like all others, but generates no code, which would take minutes.
        torch._dynamo.reset()
        model = make_model(name, device)
        expected = loss_and_gradients(model)
        compiled = torch.compile(patched(self, model), backend="aot_eager", fullgraph=True)
        ids = make_ids(model)
        with torch.no_grad(), rotations() as seen:
            loss = compiled(ids, labels=ids, use_cache=False).loss
        self.assertEqual(seen, 2 * [name in ("gemma3", "llama4")])
        self.assert_near([loss.double()], expected)
        if name not in ("deepseek_v3", "mistral4"):  # unpatched, the backward pass of experts is not traced either
            self.assert_near(loss_and_gradients(model, compiled), expected)
        unpatch(model)

    @for_each(STRUCTURES)
    def test_generated(self, name, device):
        model = make_model(name, device)
        ids = make_ids(model, 6)
        expected = model.generate(ids, max_new_tokens=6, do_sample=False)
        patched(self, model)
        # transformers 5.17 cannot make the chunked mask of Llama-4 for a static cache, not even unpatched.
        for cache in ("dynamic", "static") if name != "llama4" else ("dynamic",):
            actual = model.generate(
                ids, max_new_tokens=6, do_sample=False, cache_implementation=cache, disable_compile=True)
            self.assertTrue(torch.equal(actual, expected), cache)
        unpatch(model)


if __name__ == "__main__":
    unittest.main()
