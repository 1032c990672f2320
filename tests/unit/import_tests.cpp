// SPDX-License-Identifier: Apache-2.0
// import_tests.cpp - structs of older and newer callers
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "core/problem/import.hpp"

namespace {

// A struct as this version of the library defines it; its first release ended after `first`.
struct Known {
  uint32_t struct_size;
  uint32_t first;
  uint32_t second;
  uint32_t third;
};
constexpr uint32_t kFirstSize = 8;

constexpr uint32_t kUntouched = 0x5A5A5A5A;

struct Result {
  rope_status_t status;
  Known known;
  std::string message;
};

Result import(const void *source) {
  struct {
    Known known;
    uint32_t guard;
  } target = {{kUntouched, kUntouched, kUntouched, kUntouched}, kUntouched};
  rope::fail(ROPE_STATUS_SUCCESS, "%s", "");
  const rope_status_t status =
      rope::import_struct("some_function", "config", source, kFirstSize, &target.known, sizeof(Known));
  CHECK(target.guard == kUntouched);
  return {status, target.known, rope::last_error()};
}

// A caller's struct of `size` bytes. Its 32-bit words hold 1000, 1001, ... up to `filled` bytes, then zeros. The
// allocation is no longer than `size`.
std::vector<unsigned char> caller_struct(uint32_t size, uint32_t filled) {
  std::vector<unsigned char> bytes(size);
  for (uint32_t at = 4; at + 4 <= filled; at += 4) {
    const uint32_t word = 1000 + at / 4;
    std::memcpy(&bytes[at], &word, sizeof word);
  }
  std::memcpy(bytes.data(), &size, sizeof size);
  return bytes;
}

}  // namespace

TEST_CASE("sizes of the first release", "[import]") {
  CHECK(rope::kRopeConfigFirstSize == 88);
  CHECK(rope::kRopeArgsFirstSize == 1064);
  CHECK(rope::kSwigluConfigFirstSize == 56);
  CHECK(rope::kSwigluArgsFirstSize == 728);
}

TEST_CASE("a struct of this version is copied", "[import]") {
  const Result result = import(caller_struct(sizeof(Known), sizeof(Known)).data());
  CHECK(result.status == ROPE_STATUS_SUCCESS);
  CHECK(result.known.struct_size == sizeof(Known));
  CHECK(result.known.first == 1001);
  CHECK(result.known.second == 1002);
  CHECK(result.known.third == 1003);
  CHECK(result.message.empty());
}

TEST_CASE("members that an older caller lacks are zero", "[import]") {
  const Result result = import(caller_struct(kFirstSize, kFirstSize).data());
  CHECK(result.status == ROPE_STATUS_SUCCESS);
  CHECK(result.known.first == 1001);
  CHECK(result.known.second == 0);
  CHECK(result.known.third == 0);
}

TEST_CASE("a struct that ends inside a word of eight bytes is refused", "[import]") {
  for (uint32_t size = kFirstSize + 1; size < sizeof(Known); ++size) {
    const Result result = import(caller_struct(size, size).data());
    INFO("size " << size << ": " << result.message);
    CHECK(result.status == ROPE_STATUS_INVALID_ARGUMENT);
    CHECK(result.message == "some_function: config.struct_size is " + std::to_string(size) +
                                ", which ends inside a field: it must be sizeof the struct (16 in this version)");
    CHECK(result.known.first == kUntouched);
  }
}

TEST_CASE("what a newer caller leaves zero is ignored", "[import]") {
  for (const uint32_t size : {17u, 20u, 24u, 100u, 4095u, 4096u}) {
    const Result result = import(caller_struct(size, sizeof(Known)).data());
    INFO("size " << size);
    CHECK(result.status == ROPE_STATUS_SUCCESS);
    CHECK(result.known.first == 1001);
    CHECK(result.known.third == 1003);
  }
}

TEST_CASE("what a newer caller sets is refused, wherever it is", "[import]") {
  for (const uint32_t size : {17u, 20u, 100u, 4096u}) {
    for (const uint32_t at : {uint32_t{sizeof(Known)}, (uint32_t{sizeof(Known)} + size) / 2, size - 1}) {
      std::vector<unsigned char> bytes = caller_struct(size, sizeof(Known));
      bytes[at] = 0x80;
      const Result result = import(bytes.data());
      INFO("size " << size << ", byte " << at << ": " << result.message);
      CHECK(result.status == ROPE_STATUS_NOT_SUPPORTED);
      CHECK(result.message.rfind("some_function: config ", 0) == 0);
      CHECK(result.message.find("offset " + std::to_string(at) + ":") != std::string::npos);
      CHECK(result.known.first == kUntouched);
    }
  }
}

TEST_CASE("a size of no release is refused", "[import]") {
  for (const uint32_t size : {0u, 1u, 4u, kFirstSize - 1, 4097u, 0x80000000u, 0xffffffffu}) {
    // Bytes beyond the size must not be read.
    std::vector<unsigned char> bytes(4);
    std::memcpy(bytes.data(), &size, sizeof size);
    const Result result = import(bytes.data());
    INFO("size " << size << ": " << result.message);
    CHECK(result.status == ROPE_STATUS_INVALID_ARGUMENT);
    CHECK(result.message.rfind("some_function: config.struct_size is " + std::to_string(size) + ":", 0) == 0);
    CHECK(result.known.first == kUntouched);
  }
}

TEST_CASE("a struct that is not there is refused", "[import]") {
  const Result result = import(nullptr);
  CHECK(result.status == ROPE_STATUS_INVALID_ARGUMENT);
  CHECK(result.message == "some_function: config is NULL: it is required");
}

TEST_CASE("a struct of any alignment is read", "[import]") {
  for (size_t shift = 0; shift < 8; ++shift) {
    const std::vector<unsigned char> bytes = caller_struct(sizeof(Known), sizeof(Known));
    std::vector<unsigned char> shifted(shift + bytes.size());
    std::memcpy(shifted.data() + shift, bytes.data(), bytes.size());
    const Result result = import(shifted.data() + shift);
    CHECK(result.status == ROPE_STATUS_SUCCESS);
    CHECK(result.known.third == 1003);
  }
}

TEST_CASE("arguments of this version are read where they lie, others are copied", "[import]") {
  const Known own = {sizeof(Known), 1001, 1002, 1003};
  Known copy = {};
  const Known *args = nullptr;
  CHECK(rope::import_args("some_function", "args", &own, kFirstSize, &copy, &args) == ROPE_STATUS_SUCCESS);
  CHECK(args == &own);

  // older, newer, and off the alignment of the struct
  const std::vector<unsigned char> older = caller_struct(8, 8), newer = caller_struct(20, sizeof(Known));
  std::vector<unsigned char> shifted = caller_struct(sizeof(Known), sizeof(Known));
  shifted.insert(shifted.begin(), 0);
  for (const unsigned char *given : {older.data(), newer.data(), const_cast<const unsigned char *>(&shifted[1])}) {
    const auto *source = static_cast<const Known *>(static_cast<const void *>(given));
    CHECK(rope::import_args("some_function", "args", source, kFirstSize, &copy, &args) == ROPE_STATUS_SUCCESS);
    CHECK(args == &copy);
    CHECK(copy.second == (given == older.data() ? 0u : 1002u));
    CHECK(copy.third == (given == older.data() ? 0u : 1003u));
  }

  CHECK(rope::import_args<Known>("some_function", "args", nullptr, kFirstSize, &copy, &args) ==
        ROPE_STATUS_INVALID_ARGUMENT);
  CHECK(std::string(rope::last_error()) == "some_function: args is NULL: it is required");
}
