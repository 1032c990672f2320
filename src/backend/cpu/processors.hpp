// SPDX-License-Identifier: Apache-2.0
// processors.hpp - the number of processors for a call whose caller does not give one
#pragma once

namespace rope {

// The number of processors on which the calling thread may run, or a smaller one if a cgroup's quota (the CPU limit of
// a container) allows less time, rounded up. At least 1. The quota is read once per process.
int count_usable_processors();

// The smallest quota of this process's cgroups and their parents, in processors, rounded up; INT_MAX if there is none.
// Both cgroup versions are read, also together. `root` is prepended to the path of each file.
int count_quota_processors(const char *root);

}  // namespace rope
