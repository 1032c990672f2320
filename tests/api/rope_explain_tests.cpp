// SPDX-License-Identifier: Apache-2.0
// rope_explain_tests.cpp - the description of a call in words, without running it
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/device.hpp"

namespace {

bool has(const std::string &text, const std::string &words) {
  return text.find(words) != std::string::npos;
}

// q of [2, 5, 3, 64], and k with one head out of place, in memory that a call would change.
struct Request {
  explicit Request(const Device &device, rope_dtype_t dtype = ROPE_DTYPE_BF16) : workspace(81) {
    config = rope_config_for(device, 64);
    config.dtype = dtype;
    config.num_threads = device.kind == ROPE_DEVICE_CPU ? 3 : 0;
    args.q = workspace.tensor(dtype, {2, 5, 3, 64});
    args.k = workspace.tensor(dtype, {2, 5, 1, 64});
    args.k_out = workspace.tensor(dtype, {2, 5, 1, 64});
    workspace.fill_normal(args.q);
    workspace.fill_normal(args.k);
    workspace.freeze();
    workspace.restore();
  }

  std::string explain() {
    const RopeDesc desc = create(config);
    char text[256];
    std::memset(text, '#', sizeof text);
    const rope_status_t status = rope_explain(desc.get(), &args, text, sizeof text);
    INFO(rope_last_error());
    REQUIRE(status == ROPE_STATUS_SUCCESS);
    REQUIRE(std::memchr(text, 0, sizeof text) != nullptr);
    return text;
  }

  bool is_untouched() const {
    std::string where;
    return workspace.untouched_elsewhere(&where);
  }

  Workspace workspace;
  rope_config_t config = {};
  rope_args_t args = rope_args();
};

}  // namespace

TEST_CASE("an explanation names dtype, pairs and device", "[rope][explain]") {
  const struct {
    rope_style_t style, out_style;
    const char *pairs;
  } styles[] = {{ROPE_STYLE_HALF, 0, " half on "},
                {ROPE_STYLE_INTERLEAVED, 0, " interleaved on "},
                {ROPE_STYLE_INTERLEAVED, ROPE_STYLE_HALF, " converted on "},
                {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED, " converted on "}};
  for (const Device &device : devices()) {
    for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
      for (const auto &style : styles) {
        Request request(device, dtype);
        request.config.style = style.style;
        request.config.out_style = style.out_style;
        const std::string text = request.explain();
        INFO(device << ": " << text);
        CHECK(text.rfind("rope " + std::string(oracle::dtype_name(dtype)) + style.pairs, 0) == 0);
        CHECK_FALSE(has(text, "\n"));
        // [2, 5] tokens with 3 heads in place and one out of place, of 64 channels, each read and written.
        const int64_t bytes = 2 * 2 * 5 * 4 * 64 * oracle::element_size(dtype);
        std::string megabytes = std::to_string(static_cast<double>(bytes) / 1e6);  // six digits behind the point
        while (megabytes.back() == '0') megabytes.pop_back();
        CHECK(has(text, " " + megabytes + " MB read and written"));
        if (device.kind == ROPE_DEVICE_CPU) {
          CHECK(has(text, " on the CPU: 1 of 3 threads, "));
        } else {
          CHECK(has(text, " on CUDA: "));
          CHECK(has(text, " kernel, vectors of "));
          CHECK(has(text, ", grid "));
        }
        CHECK(request.is_untouched());
      }
    }
  }
}

TEST_CASE("an explanation names the kernel", "[rope][explain]") {
  for (const Device &device : devices()) {
    if (device.kind != ROPE_DEVICE_CUDA) continue;
    Request request(device);
    // Two batches of few tokens with few heads.
    CHECK(has(request.explain(), ": token angles kernel, "));
    request.args.cos = request.workspace.tensor(ROPE_DTYPE_F32, {9, 32});
    request.args.sin = request.workspace.tensor(ROPE_DTYPE_F32, {9, 32});
    CHECK(has(request.explain(), ": token table kernel, "));
    request.args.fault = request.workspace.tensor(ROPE_DTYPE_I64, {2});
    CHECK(has(request.explain(), ": token table kernel, "));
    request.args.cos = request.args.sin = request.args.fault = {};
    request.config.num_axes = 2;
    CHECK(has(request.explain(), ": token angles kernel, "));
    request.config.num_axes = 1;
    request.config.out_style = ROPE_STYLE_INTERLEAVED;
    CHECK(has(request.explain(), ": general kernel, "));
    request.config.out_style = {};
    request.args.k = request.args.k_out = {};
    for (const bool has_table : {false, true}) {
      if (has_table) request.args.cos = request.workspace.tensor(ROPE_DTYPE_F16, {9, 32});
      if (has_table) request.args.sin = request.workspace.tensor(ROPE_DTYPE_F16, {9, 32});
      // One batch of few tokens, and then enough tokens with one head for any GPU.
      request.args.q = request.workspace.tensor(ROPE_DTYPE_BF16, {1, 5, 3, 64});
      CHECK(has(request.explain(), has_table ? ": short table kernel, " : ": short warp angles kernel, "));
      request.args.q = request.workspace.tensor(ROPE_DTYPE_BF16, {1, 131072, 1, 64});
      CHECK(has(request.explain(), has_table ? ": thread table kernel, " : ": thread angles kernel, "));
    }
    request.args.cos = request.args.sin = {};
    // Enough tokens for shared angles.
    request.args.q = request.workspace.tensor(ROPE_DTYPE_BF16, {1, 4096, 32, 64});
    CHECK(has(request.explain(), ": long angles kernel, "));
    request.args.start_positions = request.workspace.tensor(ROPE_DTYPE_I64, {1});
    CHECK(has(request.explain(), ": token angles kernel, "));
    for (const rope_dtype_t table : {ROPE_DTYPE_F32, ROPE_DTYPE_F16}) {
      request.args.cos = request.workspace.tensor(table, {9, 32});
      request.args.sin = request.workspace.tensor(table, {9, 32});
      request.args.start_positions = request.workspace.tensor(ROPE_DTYPE_I64, {1});
      CHECK(has(request.explain(), ": token table kernel, "));
      request.args.start_positions = {};
      // The number of multiprocessors decides whether the launch is long.
      CHECK((has(request.explain(), ": flat table kernel, ") || has(request.explain(), ": long table kernel, ")));
    }
    request.args.cos = request.args.sin = {};
    request.args.q = request.workspace.tensor(ROPE_DTYPE_BF16, {2, 2048, 32, 64});
    CHECK(has(request.explain(), ": long angles kernel, "));
    request.args.q = request.workspace.tensor(ROPE_DTYPE_BF16, {1, 16384, 6, 64});
    CHECK(has(request.explain(), ": token angles kernel, "));
    request.config.pair_block = 4;
    CHECK(has(request.explain(), ": scalar angles kernel, "));
  }
}

TEST_CASE("an explanation counts the threads that a large call would use", "[rope][explain]") {
  Request request(devices()[0], ROPE_DTYPE_F32);
  rope_args_t &args = request.args;
  args.k = args.k_out = {};
  args.q = request.workspace.tensor(ROPE_DTYPE_F32, {1, 4096, 8, 64});
  CHECK(request.explain() == "rope F32 half on the CPU: 3 of 3 threads, 16.7772 MB read and written");
  request.config.num_threads = 100;
  CHECK(request.explain() == "rope F32 half on the CPU: 16 of 100 threads, 16.7772 MB read and written");
}

TEST_CASE("texts have a decimal point in every locale", "[rope][explain]") {
  // A locale whose numbers have a decimal comma, in a folder of its own.
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("rope-locale-" + std::to_string(getpid()));
  fs::create_directory(folder);
  std::ofstream(folder / "source")
      << "LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \".\"\ngrouping 3;3\nEND LC_NUMERIC\n";
  const std::string compile = "localedef -c -i " + (folder / "source").string() + " -f ANSI_X3.4-1968 " +
                              (folder / "comma").string() + " 2>/dev/null";
  const bool is_compiled = std::system(compile.c_str()) >= 0;
  const auto texts = [] {
    std::string all;
    for (const Device &device : devices()) all += Request(device).explain() + "\n";
    rope_config_t config = rope_config_for(devices().front(), 64);
    config.theta = -1234.5;
    rope_desc_t *desc = nullptr;
    CHECK(rope_desc_create(&config, &desc) == ROPE_STATUS_INVALID_ARGUMENT);
    return all + rope_last_error();
  };
  const std::string in_c = texts();
  setenv("LOCPATH", folder.c_str(), 1);
  const bool has_locale = is_compiled && std::setlocale(LC_ALL, "comma") != nullptr;
  const std::string in_locale = texts();
  char number[8];
  std::snprintf(number, sizeof number, "%g", 0.5);
  std::setlocale(LC_ALL, "C");
  unsetenv("LOCPATH");
  fs::remove_all(folder);
  if (!has_locale) SKIP("localedef of the GNU C library made no locale");
  CHECK(std::string(number) == "0,5");  // the caller's locale is kept
  CHECK(in_locale == in_c);
  CHECK(has(in_c, "0.01"));
  CHECK(has(in_c, "-1234.5"));
}

TEST_CASE("an explanation of nothing", "[rope][explain]") {
  for (const Device &device : devices()) {
    Request request(device);
    request.args = rope_args();
    request.args.q.dtype = ROPE_DTYPE_BF16;
    request.args.q.ndim = 4;
    request.args.q.shape[3] = 64;
    CHECK(request.explain() == "rope BF16 half: nothing to do, no element is rotated");
  }
}

TEST_CASE("an explanation is cut to size", "[rope][explain]") {
  for (const Device &device : devices()) {
    Request request(device);
    const std::string whole = request.explain();
    const RopeDesc desc = create(request.config);
    for (size_t size = 1; size <= whole.size() + 2; ++size) {
      char text[256];
      std::memset(text, '#', sizeof text);
      REQUIRE(rope_explain(desc.get(), &request.args, text, size) == ROPE_STATUS_SUCCESS);
      REQUIRE(std::string(text) == whole.substr(0, size - 1));
      REQUIRE(text[size] == '#');
    }
    CHECK(request.is_untouched());
  }
}

TEST_CASE("misused explanations", "[rope][explain][errors]") {
  const struct {
    const char *text;
    rope_status_t status;
    void (*commit)(rope_args_t &);
  } misuses[] = {
      {"rope_explain: args.struct_size is 8: ", ROPE_STATUS_INVALID_ARGUMENT,
       [](rope_args_t &args) { args.struct_size = 8; }},
      {"rope_explain: flags is 0x10: ", ROPE_STATUS_NOT_SUPPORTED, [](rope_args_t &args) { args.flags = 0x10; }},
      {"rope_explain: q is absent, and so are k and v: ", ROPE_STATUS_INVALID_ARGUMENT,
       [](rope_args_t &args) { args.q = args.k = args.k_out = {}; }},
      {"rope_explain: k_out is set but k is absent: ", ROPE_STATUS_INVALID_ARGUMENT,
       [](rope_args_t &args) { args.k = {}; }},
      {"rope_explain: q.dtype is F16: ", ROPE_STATUS_INVALID_ARGUMENT,
       [](rope_args_t &args) { args.q.dtype = ROPE_DTYPE_F16; }},
      {"rope_explain: table_rows is ROPE_TABLE_BY_TOKEN: it needs ", ROPE_STATUS_INVALID_ARGUMENT,
       [](rope_args_t &args) { args.table_rows = ROPE_TABLE_BY_TOKEN; }},
      {"rope_explain: q.shape[2] is 1048577: ", ROPE_STATUS_NOT_SUPPORTED,
       [](rope_args_t &args) {
         args.q.shape[2] = 1048577;
         args.q.stride[1] = 1048577 * 64;
         args.q.stride[0] = 5 * args.q.stride[1];
       }},
  };
  for (const Device &device : devices()) {
    for (const auto &misuse : misuses) {
      Request request(device);
      const RopeDesc desc = create(request.config);
      misuse.commit(request.args);
      char text[8] = "#######";
      INFO(misuse.text << " on " << device);
      CHECK(rope_explain(desc.get(), &request.args, text, sizeof text) == misuse.status);
      const std::string message = rope_last_error();
      INFO(message);
      CHECK(message.rfind(misuse.text, 0) == 0);
      CHECK(std::string(text) == "#######");
    }
    Request request(device);
    const RopeDesc desc = create(request.config);
    char text[8] = "#######";
    const auto refuses = [&](const rope_desc_t *of, const rope_args_t *args, char *to, size_t size, const char *words) {
      CHECK(rope_explain(of, args, to, size) == ROPE_STATUS_INVALID_ARGUMENT);
      const std::string message = rope_last_error();
      INFO(message);
      CHECK(message.rfind(words, 0) == 0);
      CHECK(std::string(text) == "#######");
    };
    refuses(nullptr, &request.args, text, sizeof text, "rope_explain: desc is NULL: it is required");
    refuses(desc.get(), nullptr, text, sizeof text, "rope_explain: args is NULL: it is required");
    refuses(desc.get(), &request.args, nullptr, 256, "rope_explain: text is NULL: it is required");
    refuses(desc.get(), &request.args, text, 0, "rope_explain: size is 0: it must hold a text");
    rope_desc_t *destroyed = create(request.config).release();
    rope_desc_destroy(destroyed);
    refuses(destroyed, &request.args, text, sizeof text, "rope_explain: desc ");
    CHECK(request.is_untouched());
  }
}
