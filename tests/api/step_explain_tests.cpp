// SPDX-License-Identifier: Apache-2.0
// step_explain_tests.cpp - the text of rope_explain for norms, caches and tensors that are not turned
#include <catch2/catch_test_macros.hpp>
#include <string>

#include "support/device.hpp"
#include "support/tensors.hpp"

namespace {

// THD, 32 heads of q and 8 of k and v of 128 channels.
struct Request {
  Request(const Device &given, int64_t tokens) : device(given), config(rope_config_for(given, 128)), args(rope_args()) {
    config.layout = ROPE_LAYOUT_THD;
    config.dtype = ROPE_DTYPE_BF16;
    config.num_threads = 1;
    args.q = workspace.tensor(ROPE_DTYPE_BF16, {tokens, 32, 128});
    args.k = workspace.tensor(ROPE_DTYPE_BF16, {tokens, 8, 128});
    args.v = workspace.tensor(ROPE_DTYPE_BF16, {tokens, 8, 128});
    cache.k_cache = workspace.tensor(ROPE_DTYPE_BF16, {tokens / 4 + 1, 4, 8, 128});
    cache.v_cache = workspace.tensor(ROPE_DTYPE_BF16, {tokens / 4 + 1, 4, 8, 128});
    cache.slots = workspace.tensor(ROPE_DTYPE_I64, {tokens});
  }

  Request &with_norm() {
    config.norm = ROPE_NORM_RMS;
    config.norm_eps = 1e-6;
    args.norm = &norm;
    return *this;
  }
  Request &with_cache() {
    args.cache = &cache;
    return *this;
  }
  Request &with_codes() {
    cache.k_cache = workspace.tensor(ROPE_DTYPE_F8_E4M3, {args.q.shape[0] / 4 + 1, 4, 8, 128});
    cache.v_cache = workspace.tensor(ROPE_DTYPE_F8_E4M3, {args.q.shape[0] / 4 + 1, 4, 8, 128});
    return with_cache();
  }

  std::string explain() {
    const RopeDesc desc = create(config);
    char text[256];
    const rope_status_t status = rope_explain(desc.get(), &args, text, sizeof text);
    INFO(rope_last_error());
    REQUIRE(status == ROPE_STATUS_SUCCESS);
    return text;
  }

  Workspace workspace{17};
  const Device &device;
  rope_config_t config;
  rope_args_t args;
  rope_norm_args_t norm = ROPE_NORM_ARGS_INIT;
  rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
};

bool has(const std::string &text, const std::string &part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("an explanation says what a step does", "[rope][step][explain]") {
  for (const Device &device : devices()) {
    for (int work = 0; work < 8; ++work) {
      const bool has_norm = (work & 1) != 0, is_turned = (work & 2) != 0, has_cache = (work & 4) != 0;
      Request request(device, 5);
      if (has_norm) request.with_norm();
      if (has_cache) request.with_cache();
      request.args.flags = is_turned ? ROPE_FLAG_V_UNROTATED : ROPE_FLAG_UNROTATED;
      std::string words;
      if (has_norm) words += ", norm";
      if (is_turned) words += ", rotation";
      if (has_cache) words += ", cache";
      if (words.empty()) words = ", copy";
      const std::string text = request.explain();
      INFO(text);
      CHECK(text.rfind("step BF16 half on ", 0) == 0);
      CHECK(has(text, (device.kind == ROPE_DEVICE_CPU ? " on the CPU: " : " on CUDA: ") + words.substr(2) + ": "));
      CHECK(has(text, " MB read and written"));
      CHECK_FALSE(has(text, "\n"));
    }
  }
}

TEST_CASE("an explanation says that a kernel makes codes of 8 bits", "[rope][step][quant][explain]") {
  for (const Device &device : devices()) {
    if (device.kind != ROPE_DEVICE_CUDA) continue;
    Request few(device, 1);
    few.with_codes().args.flags = ROPE_FLAG_V_UNROTATED;
    CHECK(has(few.explain(), ": warp angles codes kernel, vectors of 8 bytes, "));
    Request several(device, 64);
    several.with_norm().with_codes().args.flags = ROPE_FLAG_V_UNROTATED;
    CHECK(has(several.explain(), ": short angles codes kernel, vectors of 8 bytes, "));
    Request many(device, 8192);
    many.with_norm().with_codes().args.flags = ROPE_FLAG_V_UNROTATED;
    CHECK(has(many.explain(), ": long angles codes kernel, vectors of 16 bytes, "));
    many.args.flags = ROPE_FLAG_UNROTATED;
    CHECK(has(many.explain(), ": long codes kernel, "));
    many.config.norm_order = ROPE_NORM_ORDER_AFTER;
    many.args.flags = ROPE_FLAG_V_UNROTATED;
    CHECK(has(many.explain(), ": long rows angles codes kernel, vectors of 16 bytes, "));
  }
}

TEST_CASE("an explanation counts the bytes of written scales", "[rope][step][quant][explain]") {
  for (const Device &device : devices()) {
    Request request(device, 5);
    request.with_codes().args.flags = ROPE_FLAG_UNROTATED;
    request.args.q = {};
    // 16 heads of 128 channels, read with 16 bits and written with 8.
    CHECK(has(request.explain(), ", 0.03072 MB read and written"));
    request.cache.k_scales = request.workspace.tensor(ROPE_DTYPE_F32, {2, 4, 8, 2});
    request.cache.v_scales = request.workspace.tensor(ROPE_DTYPE_F8_E8M0, {2, 4, 8, 4});
    CHECK(has(request.explain(), ", 0.0312 MB read and written"));
  }
}

TEST_CASE("an explanation names the kernel of a step", "[rope][step][explain]") {
  for (const Device &device : devices()) {
    if (device.kind != ROPE_DEVICE_CUDA) continue;
    Request few(device, 1);
    few.with_norm().with_cache().args.flags = ROPE_FLAG_V_UNROTATED;
    CHECK(has(few.explain(), ": warp angles kernel, vectors of 8 bytes, "));
    Request several(device, 64);
    several.with_norm().with_cache().args.flags = ROPE_FLAG_V_UNROTATED;
    CHECK(has(several.explain(), ": short angles kernel, vectors of 8 bytes, "));
    Request many(device, 8192);
    many.with_norm().with_cache().args.flags = ROPE_FLAG_V_UNROTATED;
    CHECK(has(many.explain(), ": long angles kernel, vectors of 16 bytes, "));
    many.args.cos = many.workspace.tensor(ROPE_DTYPE_F32, {9, 64});
    many.args.sin = many.workspace.tensor(ROPE_DTYPE_F32, {9, 64});
    CHECK(has(many.explain(), ": long table kernel, "));
    many.args.cos = many.args.sin = {};
    many.args.flags = ROPE_FLAG_UNROTATED;
    CHECK(has(many.explain(), ": long kernel, "));
    many.config.norm_order = ROPE_NORM_ORDER_AFTER;
    many.args.flags = ROPE_FLAG_V_UNROTATED;
    CHECK(has(many.explain(), ": long rows angles kernel, "));
    many.config.norm_extent = ROPE_NORM_EXTENT_TOKEN;
    CHECK(has(many.explain(), ": long rows angles kernel, "));
    many.args.cos = many.workspace.tensor(ROPE_DTYPE_F32, {9, 128});
    many.args.sin = many.workspace.tensor(ROPE_DTYPE_F32, {9, 128});
    CHECK(has(many.explain(), ": general kernel, "));
  }
}
