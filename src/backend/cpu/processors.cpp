// SPDX-License-Identifier: Apache-2.0
// processors.cpp - the affinity mask, and the CPU quotas of cgroups
//
// /proc/self/cgroup names the process's cgroup and /proc/self/mountinfo the folder where it is mounted. Files in that
// folder and in its parents contain the quotas; each limits everything in its folder. A folder whose path has a space,
// written as \040 in mountinfo, is not found. Formats: cgroups(7), proc(5), and Documentation/admin-guide/cgroup-v2.rst
// and scheduler/sched-bwc.rst of Linux.
#include "backend/cpu/processors.hpp"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

namespace rope {

namespace {

// A path or a line of text, truncated if it is too long.
struct Text {
  char data[1024];
  size_t length = 0;

  void append(const char *text, size_t count) {
    if (count > sizeof data - 1 - length) count = sizeof data - 1 - length;
    memcpy(data + length, text, count);
    data[length += count] = '\0';
  }
  void append(const char *text) { append(text, strlen(text)); }
};

class Lines {
 public:
  explicit Lines(const Text &path) : file_(open(path.data, O_RDONLY | O_CLOEXEC)) {}
  ~Lines() {
    if (file_ >= 0) close(file_);
  }
  Lines(const Lines &) = delete;
  Lines &operator=(const Lines &) = delete;

  // Returns false at the end of the file or after a read error.
  bool read_line(Text *line) {
    line->length = 0;
    line->append("");
    for (bool has_any = false;; has_any = true) {
      if (begin_ == end_ && !fill()) return has_any;
      const char next = buffer_[begin_++];
      if (next == '\n') return true;
      line->append(&next, 1);
    }
  }

 private:
  bool fill() {
    const ssize_t count = file_ >= 0 ? read(file_, buffer_, sizeof buffer_) : 0;
    begin_ = 0;
    end_ = count > 0 ? static_cast<size_t>(count) : 0;
    return count > 0;
  }

  int file_;
  char buffer_[512];
  size_t begin_ = 0, end_ = 0;
};

// Ends the text `from` at the next separator and returns the text behind it, or NULL if there is no separator.
char *cut(char *from, char separator) {
  if (from == nullptr) return nullptr;
  char *end = strchr(from, separator);
  if (end == nullptr) return nullptr;
  *end = '\0';
  return end + 1;
}

// Whether "cpu" is in a list such as "rw,cpu,cpuacct".
bool has_cpu(char *list) {
  for (char *item = list; item != nullptr;) {
    char *next = cut(item, ',');
    if (strcmp(item, "cpu") == 0) return true;
    item = next;
  }
  return false;
}

// Reads digits up to another character. Returns false if there are none or too many.
bool read_number(const char **text, int64_t *number) {
  const char *first = *text;
  *number = 0;
  for (; **text >= '0' && **text <= '9' && *text - first < 18; ++*text) *number = *number * 10 + (**text - '0');
  return *text != first && !(**text >= '0' && **text <= '9');
}

// The first line of a file in a folder.
Text read_setting(const Text &folder, const char *name) {
  Text path = folder, line;
  path.append(name);
  Lines(path).read_line(&line);
  return line;
}

// The quota in one folder, in processors; INT_MAX if there is none. Version 2 has one file ("200000 100000"), version 1
// one file for each number. Both numbers are in microseconds.
int quota_of(const Text &folder, bool is_version_2) {
  int64_t quota, period;
  if (is_version_2) {
    const Text line = read_setting(folder, "/cpu.max");
    const char *text = line.data;
    if (!read_number(&text, &quota) || *text++ != ' ' || !read_number(&text, &period)) return INT_MAX;
  } else {
    const Text quota_line = read_setting(folder, "/cpu.cfs_quota_us");  // -1 if there is no quota
    const Text period_line = read_setting(folder, "/cpu.cfs_period_us");
    const char *quota_text = quota_line.data, *period_text = period_line.data;
    if (!read_number(&quota_text, &quota) || !read_number(&period_text, &period)) return INT_MAX;
  }
  if (quota <= 0 || period <= 0) return INT_MAX;
  const int64_t processors = (quota - 1) / period + 1;
  return processors < INT_MAX ? static_cast<int>(processors) : INT_MAX;
}

// The smallest quota of a cgroup and its parents, up to the mount point. The mount shows the cgroup `mount_root` and
// its children; in a container, `mount_root` may be the process's own cgroup.
int min_quota(const char *root, const char *mount_root, const char *mount_point, const char *cgroup,
              bool is_version_2) {
  Text folder;
  folder.append(root);
  folder.append(mount_point);
  const size_t top = folder.length;
  const size_t shown = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);
  const bool is_shown = strncmp(cgroup, mount_root, shown) == 0 && (cgroup[shown] == '/' || cgroup[shown] == '\0');
  if (!is_shown) return INT_MAX;
  folder.append(cgroup + shown);
  int min = INT_MAX;
  for (;;) {
    const int quota = quota_of(folder, is_version_2);
    if (quota < min) min = quota;
    if (folder.length == top) return min;
    while (folder.data[--folder.length] != '/') {
    }
    folder.data[folder.length] = '\0';
  }
}

// The quota of the process's cgroup in one hierarchy, wherever that hierarchy is mounted.
int quota_in_mounts(const char *root, const char *cgroup, bool is_version_2) {
  Text path, line;
  path.append(root);
  path.append("/proc/self/mountinfo");
  int min = INT_MAX;
  for (Lines lines(path); lines.read_line(&line);) {
    // number, parent, device, root, mount point, options, optional fields, "-", type, source, options
    char *type = strstr(line.data, " - ");
    if (type == nullptr) continue;
    *type = '\0';
    type += 3;
    char *options = cut(cut(type, ' '), ' ');
    const bool is_wanted =
        is_version_2 ? strcmp(type, "cgroup2") == 0 : strcmp(type, "cgroup") == 0 && has_cpu(options);
    char *mount_root = cut(cut(cut(line.data, ' '), ' '), ' ');
    char *mount_point = cut(mount_root, ' ');
    cut(mount_point, ' ');
    if (!is_wanted || mount_point == nullptr) continue;
    const int quota = min_quota(root, mount_root, mount_point, cgroup, is_version_2);
    if (quota < min) min = quota;
  }
  return min;
}

int process_quota;
pthread_once_t process_quota_once = PTHREAD_ONCE_INIT;

void read_process_quota() {
  process_quota = count_quota_processors("");
}

int count_affine_processors() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) return CPU_COUNT(&mask);
  const long online = sysconf(_SC_NPROCESSORS_ONLN);  // if the mask is too small for the number of processors
  return online > 0 ? static_cast<int>(online) : 1;
}

}  // namespace

int count_quota_processors(const char *root) {
  Text path, line;
  path.append(root);
  path.append("/proc/self/cgroup");
  int min = INT_MAX;
  for (Lines lines(path); lines.read_line(&line);) {
    char *controllers = cut(line.data, ':');  // fields: number, controllers (empty for version 2), cgroup
    char *cgroup = cut(controllers, ':');
    if (cgroup == nullptr) continue;
    const bool is_version_2 = *controllers == '\0';
    if (!is_version_2 && !has_cpu(controllers)) continue;
    const int quota = quota_in_mounts(root, cgroup, is_version_2);
    if (quota < min) min = quota;
  }
  return min;
}

int count_usable_processors() {
  pthread_once(&process_quota_once, read_process_quota);
  const int affine = count_affine_processors();
  return process_quota < affine ? process_quota : affine;
}

}  // namespace rope
