// SPDX-License-Identifier: Apache-2.0
// launch_model.cpp - models the accesses of each thread of a planned launch
#include "plan/launch_model.hpp"

#include <string_view>
#include <utility>

uint32_t multiply_by_reciprocal(uint32_t n, uint32_t divisor) {
  const uint64_t reciprocal = ((uint64_t{1} << 32) + divisor - 1) / divisor;
  return static_cast<uint32_t>(n * static_cast<uint64_t>(static_cast<uint32_t>(reciprocal)) >> 32);
}

namespace {

// Counts how often each channel is written and each pair rotated in a launch, thread by thread, with the index
// arithmetic of the kernels.
class Launch {
 public:
  Launch(const Scene &scene, const rope::RopePlan &plan) : scene_(scene), plan_(plan) {
    const rope::RopeProblem &problem = scene.problem;
    size_t heads = 0;
    for (int i = 0; i < problem.num_tensors; ++i) {
      first_head_[i] = heads;
      heads += static_cast<size_t>(problem.tensor[i].heads);
    }
    heads_per_token_ = heads;
    const size_t rows = static_cast<size_t>(scene.num_tokens()) * heads;
    written_.resize(rows * static_cast<size_t>(scene.geometry.head_dim));
    rotated_.resize(rows * static_cast<size_t>(scene.geometry.rotary_dim / 2));
    block_of_row_.resize(rows, -1);
  }

  // Returns "" or a thread's first error.
  std::string run() {
    const Fault of_all_threads = check_launch();
    if (!of_all_threads.empty()) return std::string(of_all_threads);
    for (uint32_t y = 0; y < plan_.grid_y; ++y) {
      for (uint32_t x = 0; x < plan_.grid_x; ++x) {
        for (uint32_t thread = 0; thread < plan_.threads * plan_.thread_rows; ++thread) {
          const Fault fault = has_token_rows(plan_.variant.kernel)   ? run_row_thread(x, thread)
                              : has_parts_axis(plan_.variant.kernel) ? run_parts_thread(x, y, thread)
                              : is_flat(plan_.variant.kernel)        ? run_flat_thread(x, thread)
                                                                     : run_thread(x, y, thread);
          if (!fault.empty()) return std::string(fault);
        }
      }
    }
    return check_counts();
  }

 private:
  // "" or an error. There are many threads, and under sanitizers each allocation would be slow.
  using Fault = std::string_view;

  struct Place {
    int64_t batch, token;
    int tensor;
    int64_t head;
    size_t row;             // row of (token, head)
    uint32_t row_of_block;  // row of threads within the block; the warp if warps compute their own angles
  };

  // Conditions for all threads of the launch.
  Fault check_launch() const {
    const bool is_long = is_of_long_launch(plan_.variant.kernel);
    if (is_long && plan_.is_batch_fastest) return "batches that lie closer than tokens";
    if (has_simple_grid() && (scene_.problem.batches > 1 || plan_.rows.is_part_slowest)) {
      return "a grid that the kernel does not look at";
    }
    Fault fault;
    if (is_long || is_flat(plan_.variant.kernel) || has_parts_axis(plan_.variant.kernel)) fault = check_simple_pairs();
    if (fault.empty() && has_few_parameters()) fault = check_few_parameters();
    return fault;
  }

  bool has_simple_grid() const {
    return plan_.variant.kernel == rope::RopeKernel::kLong && plan_.variant.angles == rope::kComputedAngles &&
           plan_.variant.has_simple_grid;
  }

  // A thread of a block with rows for tokens. The grid counts parts of a token and rows, with either of them first.
  Fault run_row_thread(uint32_t x, uint32_t thread) {
    const uint32_t groups = plan_.grid_x / plan_.blocks_per_token;
    const uint32_t part = plan_.rows.is_part_slowest ? x / groups : x % plan_.blocks_per_token;
    const uint32_t group = plan_.rows.is_part_slowest ? x % groups : x / plan_.blocks_per_token;
    const uint32_t row_of_block = thread / plan_.threads, token = group * plan_.thread_rows + row_of_block;
    const uint32_t column = thread % plan_.threads;
    // If there are several parts, one multiplication finds the group.
    if (has_simple_grid() && plan_.blocks_per_token > 1 && multiply_by_reciprocal(x, plan_.blocks_per_token) != group) {
      return "a block of another group";
    }
    const Fault fault = is_of_long_launch(plan_.variant.kernel) ? count_angles_of_row(column) : Fault();
    return fault.empty() ? run_unit(token, part * plan_.threads + column, row_of_block) : fault;
  }

  Fault check_simple_pairs() const {
    const rope::RopeProblem &problem = scene_.problem;
    if (scene_.is_half() && problem.in_distance != scene_.geometry.rotary_dim / 2) return "several blocks of pairs";
    if (problem.start_positions.is_present) return "start_positions, which no thread adds";
    return "";
  }

  bool has_few_parameters() const {
    const rope::RopeKernel kernel = plan_.variant.kernel;
    return is_of_short_launch(kernel) || is_flat(kernel) || is_of_long_launch(kernel);
  }

  // Conditions of the kernels for short, flat and long launches.
  Fault check_few_parameters() const {
    const rope::RopeProblem &problem = scene_.problem;
    const int64_t stride = problem.positions.token_stride * (problem.positions.is_64_bit ? 8 : 4);
    if (problem.batches != 1 && !is_of_long_launch(plan_.variant.kernel))
      return "several batches, which no thread tells apart";
    if (problem.batches != 1 && problem.positions.batch_stride != 0) return "positions of a batch's own";
    if (problem.batches != 1 && problem.table.cos.batch_stride != 0) return "a table of a batch's own";
    if (problem.batches != 1 && problem.table.sin.batch_stride != 0) return "a table of a batch's own";
    if (stride != static_cast<int32_t>(stride)) return "positions that are too far apart";
    return "";
  }

  // Threads without a unit compute an angle too; each computes at most one pair of the row's token.
  Fault count_angles_of_row(uint32_t column) {
    const auto pairs = static_cast<uint32_t>(scene_.geometry.rotary_dim / 2);
    if (column == 0) angles_of_row_ = 0;
    if (column < pairs) ++angles_of_row_;
    return column + 1 == plan_.threads && angles_of_row_ != pairs ? "a pair whose angle no thread of the row has" : "";
  }

  // For launches in which one axis of the grid counts the parts of a token.
  Fault run_parts_thread(uint32_t x, uint32_t y, uint32_t thread) {
    const uint32_t column = thread % plan_.threads, row_of_block = thread / plan_.threads;
    const uint32_t token = x * plan_.thread_rows + row_of_block, unit = y * plan_.threads + column;
    if (plan_.variant.kernel == rope::RopeKernel::kShort) {
      const Fault fault = count_angles_of_row(column);
      if (!fault.empty()) return fault;
    }
    if (plan_.variant.kernel != rope::RopeKernel::kShortWarp) return run_unit(token, unit, row_of_block);
    // Lanes without a unit compute angles too, all for the token of the first lane.
    if (thread % 32 == 0) token_of_warp_ = token, lanes_ = 0;
    if (token != token_of_warp_) return "a warp with several tokens";
    if (lanes_++ != thread % 32) return "a warp that lacks lanes";
    if (thread + 1 == plan_.threads * plan_.thread_rows && lanes_ != 32) return "a warp that lacks lanes";
    return run_unit(token, unit, thread / 32);
  }

  Fault run_flat_thread(uint32_t x, uint32_t thread) {
    const int64_t units = scene_.num_tokens() * plan_.units.per_token;
    for (int64_t i = int64_t{x} * plan_.threads + thread; i < units; i += int64_t{plan_.grid_x} * plan_.threads) {
      const auto token = static_cast<uint32_t>(i / plan_.units.per_token);
      const Fault fault = run_unit(token, static_cast<uint32_t>(i % plan_.units.per_token), 0);
      if (!fault.empty()) return fault;
    }
    return "";
  }

  // One multiplication finds a unit's head, or group of heads.
  Fault run_unit(uint32_t token, uint32_t unit_of_token, uint32_t row_of_block) {
    const rope::RopeProblem &problem = scene_.problem;
    if (token >= scene_.num_tokens() || unit_of_token >= plan_.units.per_token) return "";
    Place place = {0, token, 0, 0, 0, row_of_block};
    if (problem.batches > 1 && plan_.is_batch_fastest) {
      place.batch = token % problem.batches;
      place.token = token / problem.batches;
    } else if (problem.batches > 1) {
      place.batch = token / problem.tokens;
      place.token = token % problem.tokens;
    }
    // Heads are numbered through all tensors, and all have equally many units.
    const int64_t heads_of_unit = is_scalar(plan_.variant.kernel) ? rope::kScalarHeads : 1;
    uint32_t units_per_head = 0;
    for (int i = 0; i < problem.num_tensors; ++i) {
      if (problem.tensor[i].heads > 0) units_per_head = plan_.units.per_head[i];
    }
    int64_t number = multiply_by_reciprocal(unit_of_token, units_per_head);
    const int64_t unit = unit_of_token - number * units_per_head;
    while (number >= divide_up(problem.tensor[place.tensor].heads, heads_of_unit)) {
      number -= divide_up(problem.tensor[place.tensor].heads, heads_of_unit);
      if (++place.tensor >= problem.num_tensors) return "a unit of no tensor";
    }
    const int64_t first = number * heads_of_unit;
    for (place.head = first; place.head < first + heads_of_unit; ++place.head) {
      if (place.head >= problem.tensor[place.tensor].heads) break;
      const Fault fault = run_row_unit(place, unit);
      if (!fault.empty()) return fault;
    }
    return "";
  }

  Fault run_row_unit(Place place, int64_t unit) {
    place.row = row_of(place);
    if (unit < plan_.units.rotary_per_head) {
      // If halves of blocks are several units long, another multiplication finds the block.
      const int64_t run = scene_.is_half() ? scene_.problem.in_distance / plan_.vector_elements : 0;
      if (run > 0 && multiply_by_reciprocal(static_cast<uint32_t>(unit), static_cast<uint32_t>(run)) != unit / run) {
        return "a unit in another block";
      }
      return rotate(place, unit);
    }
    if (has_parts_axis(plan_.variant.kernel) || has_few_parameters()) return "a copy, which no thread makes";
    const int64_t copied = copied_vectors(scene_, place.tensor, plan_.vector_elements);
    if (copied == 0) return "a copy in place";
    const int64_t first = unit - plan_.units.rotary_per_head;
    const Fault fault = copy(place, first);
    if (!fault.empty() || is_scalar(plan_.variant.kernel)) return fault;
    // The second vector of a copy unit lies as many vectors behind the first as there are copy units; the last unit may
    // lack it.
    const int64_t second = first + plan_.units.per_head[place.tensor] - plan_.units.rotary_per_head;
    return second < copied ? copy(place, second) : "";
  }

  size_t row_of(const Place &place) const {
    return static_cast<size_t>(place.batch * scene_.problem.tokens + place.token) * heads_per_token_ +
           first_head_[place.tensor] + static_cast<size_t>(place.head);
  }

  // Finds a thread's token, counted within the row of the grid, and its unit; returns false if it has none.
  bool find_work(uint32_t x, uint32_t thread, int64_t *in_row, int64_t *unit) const {
    if (thread >= plan_.blocks.units_per_block) return false;
    int64_t token_of_block = 0;
    *unit = int64_t{x % plan_.blocks_per_token} * plan_.blocks.units_per_block + thread;
    if (plan_.tokens_per_block > 1) {
      token_of_block = thread / plan_.units.per_token;
      *unit = thread % plan_.units.per_token;
    }
    *in_row = int64_t{x / plan_.blocks_per_token} * plan_.tokens_per_block + token_of_block;
    return token_of_block < plan_.tokens_per_block && *unit < plan_.units.per_token &&
           *in_row < plan_.blocks.tokens_per_grid_row;
  }

  Fault run_thread(uint32_t x, uint32_t y, uint32_t thread) {
    int64_t in_row = 0, unit = 0;
    if (!find_work(x, thread, &in_row, &unit)) return "";
    const int64_t token = y * plan_.blocks.tokens_per_grid_row + in_row;
    if (token >= scene_.num_tokens()) return "";

    const rope::RopeProblem &problem = scene_.problem;
    Place place = {0, token, 0, 0, 0, 0};
    // A row begins with a batch or, with several batches, with one token of all batches.
    if (problem.batches > 1) {
      const int64_t inner = plan_.is_batch_fastest ? problem.batches : problem.tokens;
      place.batch = y * (plan_.blocks.tokens_per_grid_row / inner) + in_row / inner;
      place.token = in_row % inner;
      if (plan_.is_batch_fastest) std::swap(place.batch, place.token);
      if (place.batch >= problem.batches || place.token >= problem.tokens) return "a token of no batch";
    }
    while (unit >= plan_.units.per_head[place.tensor] * problem.tensor[place.tensor].heads) {
      unit -= plan_.units.per_head[place.tensor] * problem.tensor[place.tensor].heads;
      if (++place.tensor >= problem.num_tensors) return "a unit of no tensor";
    }
    place.head = unit / plan_.units.per_head[place.tensor];
    unit %= plan_.units.per_head[place.tensor];
    place.row = row_of(place);
    if (scene_.is_converted() && problem.tensor[place.tensor].is_in_place) {
      const int64_t block = int64_t{y} * plan_.grid_x + x;
      if (block_of_row_[place.row] >= 0 && block_of_row_[place.row] != block) return "a head in two blocks";
      block_of_row_[place.row] = block;
    }
    if (unit < plan_.units.rotary_per_head) return rotate(place, unit);
    // If blocks have whole heads, the units of heads in place that correspond to copy units have no work.
    if (problem.tensor[place.tensor].is_in_place) return scene_.converts_in_place() ? "" : "a copy in place";
    return copy(place, unit - plan_.units.rotary_per_head);
  }

  // The first channels of a rotary unit's two vectors, within the window, on the side with this distance.
  std::pair<int, int> vectors_of(int64_t unit, int distance) const {
    const int elements = plan_.vector_elements, first = static_cast<int>(unit) * elements;
    if (distance > 1) {
      const int low = first / distance * 2 * distance + first % distance;
      return {low, low + distance};
    }
    if (scene_.is_interleaved() && elements > 1) return {first, first + scene_.geometry.rotary_dim / 2};
    return {2 * first, 2 * first + elements};
  }

  // Finds the pairs in a unit's vectors, both channels of each; none if a pair is incomplete.
  void find_pairs(std::pair<int, int> vectors, int distance, std::vector<int> *pairs) const {
    const int elements = plan_.vector_elements;
    const auto holds = [&](int channel) {
      return (channel >= vectors.first && channel < vectors.first + elements) ||
             (channel >= vectors.second && channel < vectors.second + elements);
    };
    pairs->clear();
    for (int i = 0; i < 2 * elements; ++i) {
      const int channel = i < elements ? vectors.first + i : vectors.second + i - elements;
      const bool is_second = channel / distance % 2 != 0;
      if (!holds(is_second ? channel - distance : channel + distance)) return pairs->clear();
      if (!is_second) pairs->push_back(channel / (2 * distance) * distance + channel % distance);
    }
  }

  Fault rotate(const Place &place, int64_t unit) {
    const rope::RopeProblem &problem = scene_.problem;
    const std::pair<int, int> from = vectors_of(unit, problem.in_distance), to = vectors_of(unit, problem.out_distance);
    find_pairs(from, problem.in_distance, &read_pairs_);
    find_pairs(to, problem.out_distance, &written_pairs_);
    const std::vector<int> &pairs = read_pairs_;
    if (pairs.empty()) return "a pair in two units";
    const bool has_shared_angles = has_token_rows(plan_.variant.kernel) ||
                                   plan_.variant.kernel == rope::RopeKernel::kShortWarp ||
                                   plan_.variant.kernel == rope::RopeKernel::kShort;
    Fault angle_fault = has_shared_angles ? check_shared(place, pairs) : check_table(place, pairs);
    if (angle_fault.empty() && is_of_long_launch(plan_.variant.kernel)) angle_fault = check_long_table(place);
    if (!angle_fault.empty()) return angle_fault;
    if (has_few_parameters()) {
      const Fault fault = check_short_addresses(place);
      if (!fault.empty()) return fault;
    }
    if (pairs != written_pairs_) return "other pairs written than read";
    for (const int channel : {from.first, from.second}) {
      const Fault fault = check_vector(place, scene_.geometry.rotary_offset + channel, false);
      if (!fault.empty()) return fault;
    }
    for (const int channel : {to.first, to.second}) {
      const Fault fault = write(place, scene_.geometry.rotary_offset + channel);
      if (!fault.empty()) return fault;
    }
    for (const int pair : pairs) {
      ++rotated_[place.row * static_cast<size_t>(scene_.geometry.rotary_dim / 2) + static_cast<size_t>(pair)];
    }
    return "";
  }

  // The kernels of short and long launches have 32-bit strides in bytes, and use one offset for a head's input and
  // output. Threads behind the last head compute an address too.
  Fault check_short_addresses(const Place &place) const {
    const rope::RotatedTensor &tensor = scene_.problem.tensor[place.tensor];
    const int64_t token = place.batch * scene_.problem.tokens + place.token;
    const auto address_of = [&](const char *data, int64_t token_bytes, int64_t head_bytes) {
      return reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(token * token_bytes + place.head * head_bytes);
    };
    const int64_t size = scene_.element_size();
    for (const int64_t *stride : {tensor.in_stride, tensor.out_stride}) {
      if (place.batch > 0 && stride[rope::kBatch] != scene_.problem.tokens * stride[rope::kToken]) {
        return "batches that do not follow each other";
      }
    }
    if (tensor.in_stride[rope::kHead] < 0) return "threads without a head have addresses below all others";
    const uintptr_t in = address_of(tensor.in, static_cast<int32_t>(tensor.in_stride[rope::kToken] * size),
                                    static_cast<int32_t>(tensor.in_stride[rope::kHead] * size));
    const uintptr_t in_to_out = reinterpret_cast<uintptr_t>(tensor.out) - reinterpret_cast<uintptr_t>(tensor.in);
    if (in != address_of(tensor.in, tensor.in_stride[rope::kToken] * size, tensor.in_stride[rope::kHead] * size)) {
      return "strides of more than 32 bits";
    }
    if (in + in_to_out !=
        address_of(tensor.out, tensor.out_stride[rope::kToken] * size, tensor.out_stride[rope::kHead] * size)) {
      return "an output with other strides";
    }
    return "";
  }

  // The runs of angles that a thread reads as vectors of up to four. A row of threads, or a warp, has the cosines of
  // its token's pairs and then the sines. The kernels for short and long launches have room for the largest number of
  // pairs.
  Fault check_shared(const Place &place, const std::vector<int> &pairs) const {
    const int64_t length = run_length(scene_, plan_.vector_elements), step = std::min<int64_t>(length, 4);
    const int64_t num_pairs = scene_.geometry.rotary_dim / 2;
    const bool has_fixed_room = is_of_short_launch(plan_.variant.kernel) || is_of_long_launch(plan_.variant.kernel);
    const int64_t room = has_fixed_room ? rope::kMaxShortPairs : num_pairs;
    for (size_t i = 0; i < pairs.size(); ++i) {
      const int64_t in_run = static_cast<int64_t>(i) % length;
      if (in_run > 0 && pairs[i] != pairs[i - 1] + 1) return "a run of pairs that are apart";
      if (in_run % step != 0) continue;
      const int64_t cos = place.row_of_block * 2 * room + pairs[i], sin = cos + room;
      if (pairs[i] + step > num_pairs || num_pairs > room) return "an angle that no thread computes";
      if (cos % step != 0 || sin % step != 0) return "a run of angles that is not aligned";
      if ((sin + step) * 4 > plan_.shared_bytes) return "angles past the block's";
    }
    return "";
  }

  // The entries that the threads of a row read, one each: they are adjacent, and the row stride fits 32 bits.
  Fault check_long_table(const Place &place) const {
    if (is_computed(scene_)) return "";
    const rope::AngleTable &table = scene_.problem.table;
    const int64_t size = oracle::element_size(table.dtype), row_bytes = table.cos.row_stride * size;
    if (size != (plan_.variant.angles == rope::kTable32 ? 4 : 2)) return "a table of another width";
    if (table.cos.column_stride != 1 || table.sin.column_stride != 1) return "columns that are apart";
    if (table.cos.row_stride != table.sin.row_stride) return "two strides of rows";
    if (row_bytes != static_cast<int32_t>(row_bytes) || table.rows > INT32_MAX) return "rows that 32 bits do not count";
    const int64_t row = table.is_by_token ? place.token : place.token % table.rows;
    for (const rope::TableColumns *columns : {&table.cos, &table.sin}) {
      if (table_row(scene_, *columns, 0, row) % static_cast<uintptr_t>(size) != 0) return "an entry not aligned";
    }
    return "";
  }

  // The parts of a table's row that a thread reads as vectors.
  Fault check_table(const Place &place, const std::vector<int> &pairs) const {
    if (shares_angles(plan_.variant.kernel) || plan_.variant.angles == rope::kComputedAngles) return "";
    const rope::AngleTable &table = scene_.problem.table;
    const int64_t size = oracle::element_size(table.dtype), length = run_length(scene_, plan_.vector_elements);
    const int64_t step = std::min<int64_t>(length, 16 / size);
    if (size != (plan_.variant.angles == rope::kTable32 ? 4 : 2)) return "a table of another width";
    if (has_few_parameters() && table.cos.row_stride != table.sin.row_stride) return "two strides of rows";
    const int64_t row = table.is_by_token ? place.token : place.token % table.rows;
    for (size_t i = 0; i < pairs.size(); ++i) {
      const int64_t in_run = static_cast<int64_t>(i) % length;
      if (in_run > 0 && pairs[i] != pairs[i - 1] + 1) return "a run of pairs that are apart";
      if (in_run % step != 0) continue;
      for (const rope::TableColumns *columns : {&table.cos, &table.sin}) {
        const uintptr_t address =
            table_row(scene_, *columns, place.batch, row) + static_cast<uintptr_t>(pairs[i] * size);
        if (columns->column_stride != 1) return "columns that are apart";
        if (address % static_cast<uintptr_t>(step * size) != 0) return "a run that is not aligned";
      }
    }
    return "";
  }

  // Copies one vector of channels outside the window.
  Fault copy(const Place &place, int64_t unit) {
    const rope::RopeGeometry &geometry = scene_.geometry;
    int channel = static_cast<int>(unit) * plan_.vector_elements;
    if (channel >= geometry.rotary_offset) channel += geometry.rotary_dim;
    const Fault fault = check_vector(place, channel, false);
    return fault.empty() ? write(place, channel) : fault;
  }

  Fault check_vector(const Place &place, int channel, bool is_out) const {
    const rope::RotatedTensor &tensor = scene_.problem.tensor[place.tensor];
    const int elements = plan_.vector_elements;
    if (channel < 0 || channel + elements > scene_.geometry.head_dim) return "a vector past its head";
    const int64_t *stride = is_out ? tensor.out_stride : tensor.in_stride;
    const int64_t offset = place.batch * stride[rope::kBatch] + place.token * stride[rope::kToken] +
                           place.head * stride[rope::kHead] + channel * stride[rope::kChannel];
    const uintptr_t address = reinterpret_cast<uintptr_t>(is_out ? tensor.out : tensor.in) +
                              static_cast<uintptr_t>(offset * scene_.element_size());
    if (address % static_cast<uintptr_t>(elements * scene_.element_size()) != 0) return "a vector that is not aligned";
    if (elements > 1 && stride[rope::kChannel] != 1) return "a vector of channels that are apart";
    return "";
  }

  Fault write(const Place &place, int channel) {
    const Fault fault = check_vector(place, channel, true);
    if (!fault.empty()) return fault;
    const size_t first = place.row * static_cast<size_t>(scene_.geometry.head_dim) + static_cast<size_t>(channel);
    for (int i = 0; i < plan_.vector_elements; ++i) ++written_[first + static_cast<size_t>(i)];
    return "";
  }

  std::string check_counts() const {
    const rope::RopeGeometry &geometry = scene_.geometry;
    const auto head_dim = static_cast<size_t>(geometry.head_dim);
    for (size_t i = 0; i < rotated_.size(); ++i) {
      if (rotated_[i] != 1) return "a pair is rotated " + std::to_string(rotated_[i]) + " times";
    }
    for (size_t i = 0; i < written_.size(); ++i) {
      const size_t head = i / head_dim % heads_per_token_;
      const auto channel = static_cast<int>(i % head_dim);
      int tensor = scene_.problem.num_tensors - 1;
      while (first_head_[tensor] > head) --tensor;
      const bool is_rotated =
          channel >= geometry.rotary_offset && channel < geometry.rotary_offset + geometry.rotary_dim;
      const int expected = is_rotated || !scene_.problem.tensor[tensor].is_in_place ? 1 : 0;
      if (written_[i] != expected) {
        return "channel " + std::to_string(channel) + " is written " + std::to_string(written_[i]) + " times";
      }
    }
    return "";
  }

  const Scene &scene_;
  const rope::RopePlan &plan_;
  size_t first_head_[3] = {};
  size_t heads_per_token_ = 0;
  uint32_t token_of_warp_ = 0, lanes_ = 0, angles_of_row_ = 0;
  std::vector<uint8_t> written_, rotated_;
  std::vector<int> read_pairs_, written_pairs_;  // pairs of the unit being rotated
  std::vector<int64_t> block_of_row_;            // for heads that are converted in place
};

}  // namespace

std::string run_launch(const Scene &scene, const rope::RopePlan &plan) {
  return Launch(scene, plan).run();
}

rope::RopePlan in_short_rows(const Scene &scene, rope::RopePlan plan, int64_t tokens) {
  if (!shares_angles(plan.variant.kernel)) return plan;  // the grid has one row
  int64_t unit = plan.tokens_per_block;
  if (scene.problem.batches > 1) unit = plan.is_batch_fastest ? scene.problem.batches : scene.problem.tokens;
  plan.blocks.tokens_per_grid_row = std::max(tokens / unit, int64_t{1}) * unit;
  plan.grid_y = static_cast<uint32_t>(divide_up(scene.num_tokens(), plan.blocks.tokens_per_grid_row));
  plan.grid_x =
      static_cast<uint32_t>(divide_up(plan.blocks.tokens_per_grid_row, plan.tokens_per_block)) * plan.blocks_per_token;
  return plan;
}
