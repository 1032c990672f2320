// SPDX-License-Identifier: Apache-2.0
// processors_tests.cpp - affinity, and CPU quotas of containers, read from files that the tests write
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <climits>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "backend/cpu/processors.hpp"

namespace {

// A folder that replaces the root of the file system and has the kernel's files.
class Root {
 public:
  Root() : path_(std::filesystem::temp_directory_path() / ("librope-processors-" + std::to_string(getpid()))) {}
  ~Root() { std::filesystem::remove_all(path_); }
  Root(const Root &) = delete;
  Root &operator=(const Root &) = delete;

  Root &with(const std::string &file, const std::string &text) {
    const std::filesystem::path path = path_.string() + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return *this;
  }
  Root &cgroup(const std::string &text) { return with("/proc/self/cgroup", text); }
  Root &mounts(const std::string &text) {
    return with("/proc/self/mountinfo", "22 1 0:21 / /proc rw - proc proc rw\n" + text);
  }

  int processors() const { return rope::count_quota_processors(path_.c_str()); }

 private:
  std::filesystem::path path_;
};

const char *const version_2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
const char *const version_1 =
    "31 23 0:27 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755\n"
    "32 31 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "33 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n";

}  // namespace

TEST_CASE("a quota of cgroups version 2, rounded up", "[processors]") {
  struct Quota {
    const char *text;
    int processors;
  };
  for (const Quota &quota :
       {Quota{"400000 100000\n", 4}, Quota{"400001 100000\n", 5}, Quota{"150000 100000\n", 2},
        Quota{"1000 100000\n", 1}, Quota{"max 100000\n", INT_MAX}, Quota{"50000 20000", 3}, Quota{"", INT_MAX},
        Quota{"0 100000\n", INT_MAX}, Quota{"100000 0\n", INT_MAX}, Quota{"99999999999999999999 1\n", INT_MAX},
        Quota{"400000", INT_MAX}, Quota{"-1 100000\n", INT_MAX}}) {
    INFO(quota.text);
    CHECK(Root().cgroup("0::/\n").mounts(version_2).with("/sys/fs/cgroup/cpu.max", quota.text).processors() ==
          quota.processors);
  }
}

TEST_CASE("a quota of cgroups version 1, rounded up", "[processors]") {
  const auto processors = [](const char *quota, const char *period) {
    return Root()
        .cgroup("4:memory:/\n3:cpu,cpuacct:/\n2:cpuset:/\n")
        .mounts(version_1)
        .with("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", quota)
        .with("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", period)
        .processors();
  };
  CHECK(processors("250000\n", "100000\n") == 3);
  CHECK(processors("50000\n", "50000\n") == 1);
  CHECK(processors("-1\n", "100000\n") == INT_MAX);
  CHECK(processors("x\n", "100000\n") == INT_MAX);
}

TEST_CASE("the least quota of the cgroups that a process lies in", "[processors]") {
  const auto root = [](const char *pod, const char *container) {
    return Root()
        .cgroup("0::/pods/pod1/container\n")
        .mounts(version_2)
        .with("/sys/fs/cgroup/pods/cpu.max", "9000000 100000\n")
        .with("/sys/fs/cgroup/pods/pod1/cpu.max", pod)
        .with("/sys/fs/cgroup/pods/pod1/container/cpu.max", container)
        .with("/sys/fs/cgroup/pods/pod2/cpu.max", "100000 100000\n")
        .processors();
  };
  CHECK(root("max 100000\n", "max 100000\n") == 90);
  CHECK(root("max 100000\n", "600000 100000\n") == 6);
  CHECK(root("500000 100000\n", "600000 100000\n") == 5);
}

TEST_CASE("a mount that shows the container's own cgroup at its top", "[processors]") {
  // Docker without a cgroup namespace: the path is the host's, and the mount begins there.
  Root root;
  root.cgroup("5:cpu,cpuacct:/docker/abc\n0::/docker/abc\n")
      .mounts("33 31 0:29 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpuacct,cpu\n")
      .with("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "700000")
      .with("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  CHECK(root.processors() == 7);
  // A cgroup created inside the container.
  root.cgroup("5:cpu,cpuacct:/docker/abc/job\n")
      .with("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "200000")
      .with("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000");
  CHECK(root.processors() == 2);
  // A cgroup outside the mount, although its name begins with the mount's.
  root.cgroup("5:cpu,cpuacct:/docker/abcdef\n");
  CHECK(root.processors() == INT_MAX);
}

TEST_CASE("a mount that shows another cgroup says nothing", "[processors]") {
  Root root;
  root.cgroup("0::/user.slice\n")
      .mounts(std::string(version_2) + "44 23 0:26 /system.slice/other /mnt/other rw - cgroup2 cgroup2 rw\n")
      .with("/mnt/other/cpu.max", "100000 100000");
  CHECK(root.processors() == INT_MAX);
  root.with("/sys/fs/cgroup/user.slice/cpu.max", "300000 100000");
  CHECK(root.processors() == 3);
}

TEST_CASE("both versions at once: the one that has the cpu controller says", "[processors]") {
  CHECK(Root()
            .cgroup("9:name=systemd:/\n1:cpu:/\n0::/\n")
            .mounts("32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
                    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n")
            .with("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000")
            .with("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
            .processors() == 3);
}

TEST_CASE("no quota where the files are missing, empty or say something else", "[processors]") {
  const std::string endless(100000, 'x');
  CHECK(Root().processors() == INT_MAX);
  CHECK(Root().cgroup("").mounts("").processors() == INT_MAX);
  CHECK(Root().cgroup("0::/\n").mounts("").processors() == INT_MAX);
  CHECK(Root().cgroup("0::/\n").mounts(version_2).processors() == INT_MAX);
  CHECK(Root().cgroup("::::\n0\n0:\n0::\n\n").mounts(" - \n - cgroup2\n1 2 3 4 - cgroup2 a b\n").processors() ==
        INT_MAX);
  CHECK(Root().cgroup("0::/" + endless + "\n").mounts(version_2).processors() == INT_MAX);
  CHECK(Root()
            .cgroup("0::/\n")
            .mounts("31 1 0:1 / /" + endless + " rw - cgroup2 c rw\n" + version_2)
            .with("/sys/fs/cgroup/cpu.max", "200000 100000")
            .processors() == 2);
}

TEST_CASE("processors are those that the thread may run on", "[processors]") {
  cpu_set_t before;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  CHECK(rope::count_usable_processors() == std::min(CPU_COUNT(&before), rope::count_quota_processors("")));
  int bound_to_one = 0;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &before)) continue;
      CPU_SET(cpu, &one);
      break;
    }
    if (sched_setaffinity(0, sizeof one, &one) == 0) bound_to_one = rope::count_usable_processors();
  }).join();
  CHECK(bound_to_one == 1);
}
