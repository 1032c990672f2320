// processors.hpp - how many processors a call may use where its caller does not say
#pragma once

namespace rope {

// Processors that the calling thread may run on, or fewer where a cgroup's quota (the CPU limit of a container) gives
// the process less time than theirs, rounded up. At least 1. The quota is read once in a process.
int count_usable_processors();

// The least quota of this process's cgroups and of those that they lie in, in processors, rounded up; INT_MAX without
// one. Versions 1 and 2, also both at once. `root` is put before the path of each file that is read.
int count_quota_processors(const char *root);

}  // namespace rope
