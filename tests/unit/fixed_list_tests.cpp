// SPDX-License-Identifier: Apache-2.0
// fixed_list_tests.cpp - lists, texts and tables of a fixed size take what they have room for, and nothing more
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "backend/cuda/address_table.hpp"
#include "core/problem/fixed_list.hpp"

TEST_CASE("a full list adds nothing", "[fixed list]") {
  struct {
    rope::FixedList<int, 3> list;
    int behind;
  } memory = {{}, 77};
  memory.list.clear();
  CHECK(memory.list.add(4));
  int *const second = memory.list.add();
  REQUIRE(second != nullptr);
  *second = 5;
  CHECK(memory.list.add(6));
  CHECK(!memory.list.add(7));
  CHECK(memory.list.add() == nullptr);
  CHECK(memory.behind == 77);
  CHECK(memory.list.count() == 3);
  int sum = 0;
  for (const int value : memory.list) sum = 10 * sum + value;
  CHECK(sum == 456);
  memory.list.remove_last();
  CHECK(memory.list.count() == 2);
  CHECK(memory.list.add(8));
  CHECK(memory.list[2] == 8);
  CHECK(std::is_trivial_v<rope::FixedList<int, 3>>);
}

TEST_CASE("a full text leaves out what has no room", "[fixed list]") {
  struct {
    rope::FixedText<8> text;
    char behind[4] = {'#', '#', '#', '#'};
  } memory;
  CHECK(std::string(memory.text.text).empty());
  memory.text.append("ab");
  memory.text.append(int64_t{305});
  CHECK(std::string(memory.text.text) == "ab305");
  memory.text.append("cdef");
  memory.text.append(int64_t{1});
  CHECK(std::string(memory.text.text) == "ab305cd");
  CHECK(std::memcmp(memory.behind, "####", 4) == 0);
  rope::FixedText<32> number;
  number.append(INT64_MAX);
  CHECK(std::string(number.text) == "9223372036854775807");
}

namespace {

struct Entry {
  const void *address;
  int number;
};

}  // namespace

TEST_CASE("a full table of addresses finds its entries and says that it has no other", "[fixed list]") {
  static rope::AddressTable<Entry, 4> table;
  static char addresses[17];
  for (int i = 0; i < 16; ++i) {
    Entry *const entry = table.find(&addresses[i]);
    REQUIRE(entry != nullptr);
    CHECK(entry->number == 0);
    entry->number = i + 1;
  }
  CHECK(table.find(&addresses[16]) == nullptr);
  for (int i = 0; i < 16; ++i) {
    Entry *const entry = table.find(&addresses[i]);
    REQUIRE(entry != nullptr);
    CHECK(entry->number == i + 1);
  }
}
