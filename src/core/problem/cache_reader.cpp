// SPDX-License-Identifier: Apache-2.0
// cache_reader.cpp - validates caches and the operands that assign tokens to places in them
#include "core/problem/cache_reader.hpp"

#include "core/problem/import.hpp"
#include "core/problem/overlap.hpp"
#include "core/problem/shape_text.hpp"

namespace rope {

namespace {

constexpr rope_status_t kInvalid = ROPE_STATUS_INVALID_ARGUMENT;
constexpr rope_status_t kUnsupported = ROPE_STATUS_NOT_SUPPORTED;

}  // namespace

rope_status_t CacheReader::check(const rope_args_t &args) {
  ROPE_TRY(import_args(function_, "cache", args.cache, kRopeCacheArgsFirstSize, &copy_, &cache_));
  if ((cache_->flags & ~uint32_t{ROPE_CACHE_FLAG_SKIP_SLOT_0}) != 0) {
    return fail(kUnsupported, "%s: cache.flags is 0x%x: this version knows ROPE_CACHE_FLAG_SKIP_SLOT_0 (0x%x) only",
                function_, cache_->flags, ROPE_CACHE_FLAG_SKIP_SLOT_0);
  }
  if (!is_zeroed(cache_->k_pass_cache) && is_zeroed(cache_->k_cache)) {
    return fail(kInvalid, "%s: cache.k_pass_cache is set but cache.k_cache is absent: the window goes there",
                function_);
  }
  if (!is_zeroed(cache_->k_cache) || !is_zeroed(cache_->v_cache)) return ROPE_STATUS_SUCCESS;
  return fail(kInvalid, "%s: cache.k_cache is absent, and so is cache.v_cache: one of them is required", function_);
}

bool CacheReader::has(TensorName name) const {
  return cache_ != nullptr && name != kQ && !is_zeroed(name == kK ? cache_->k_cache : cache_->v_cache);
}

rope_status_t CacheReader::read(const GroupTarget &target) {
  target.step->has_caches = true;
  target.step->places = {};
  ROPE_TRY(read_caches_of(kK, "cache.k_cache", cache_->k_cache, cache_->k_pass_cache, target));
  ROPE_TRY(read_caches_of(kV, "cache.v_cache", cache_->v_cache, rope_tensor_t{}, target));
  target.step->places.skips_slot_0 = (cache_->flags & ROPE_CACHE_FLAG_SKIP_SLOT_0) != 0;
  return read_places(target.problem, &target.step->places);
}

// Reads one cache with all channels of a tensor or, if `pass` is given, one with the window and a second one with the
// other channels.
rope_status_t CacheReader::read_caches_of(TensorName name, const char *field, const rope_tensor_t &given,
                                          const rope_tensor_t &pass, const GroupTarget &target) {
  if (is_zeroed(given)) return ROPE_STATUS_SUCCESS;
  int index;
  ROPE_TRY(find_tensor(field, name, target, &index));
  StepTensor *const tensor = &target.step->tensor[index];
  const int begin = tensor->window_begin, end = begin + geometry_.rotary_dim;
  const bool has_pass = !is_zeroed(pass);
  if (has_pass && tensor->channels == geometry_.rotary_dim) {
    return fail(kInvalid, "%s: cache.k_pass_cache is set: k has no channels outside the window, %d of %d", function_,
                geometry_.rotary_dim, tensor->channels);
  }
  tensor->cache_part = {true, !has_pass, has_pass ? 0 : begin, end};
  ROPE_TRY(read_cache(field, given, name, target, tensor->cache_part, &tensor->cache));
  if (!has_pass) return ROPE_STATUS_SUCCESS;
  tensor->has_parts = true;
  return read_cache("cache.k_pass_cache", pass, name, target, ChannelPart::others(begin), &tensor->pass_cache);
}

rope_status_t CacheReader::read_cache(const char *field, const rope_tensor_t &given, TensorName name,
                                      const GroupTarget &target, const ChannelPart &part, CacheView *cache) {
  Operand *operand;
  ROPE_TRY(operands_->read(Role::kDisjointOut, field, given, &operand));
  const int index = target.index_of(name);
  const View &view = operand->view;
  ROPE_TRY(check_written_type(function_, field, view.dtype, geometry_.dtype));
  if (view.ndim != 4) {
    return fail(kInvalid, "%s: %s.ndim is %d: it must be 4, [pages, entries, heads, channels]", function_, field,
                view.ndim);
  }
  const int64_t heads = target.problem.tensor[index].heads;
  const int64_t channels = part.count(target.step->tensor[index].channels, geometry_.rotary_dim);
  if (view.shape[2] != heads || view.shape[3] != channels) {
    return fail(kInvalid,
                "%s: %s has shape %s: it must be [pages, entries, %lld, %lld], as %s has heads and channels%s",
                function_, field, ShapeText(view).text, printable(heads), printable(channels), kTensorNames[name],
                part.has_others && part.has_window ? ""
                : part.has_window                  ? " of the window, beside cache.k_pass_cache"
                                                   : " outside the window");
  }
  CachePlaces *places = &target.step->places;
  if (first_cache_ != nullptr && (view.shape[0] != places->pages || view.shape[1] != places->entries)) {
    return fail(kInvalid, "%s: %s has %lld pages of %lld entries: all caches have those of %s, %lld of %lld", function_,
                field, printable(view.shape[0]), printable(view.shape[1]), first_cache_, printable(places->pages),
                printable(places->entries));
  }
  first_cache_ = field;
  places->pages = view.shape[0];
  places->entries = view.shape[1];
  ROPE_TRY(check_output_strides(function_, field, view));
  // An empty cache has no place for any token, so its data is never read.
  *cache = {view.data, view.dtype, view.stride[0], view.stride[1], view.stride[2], view.stride[3]};
  return ROPE_STATUS_SUCCESS;
}

rope_status_t CacheReader::read_places(const RopeProblem &problem, CachePlaces *places) {
  places->cached_tokens = problem.tokens;
  const bool has_slots = !is_zeroed(cache_->slots), has_table = !is_zeroed(cache_->page_table);
  if (has_slots == has_table) {
    return fail(kInvalid, "%s: cache.slots is %s: one of it and cache.page_table says where tokens go", function_,
                has_slots ? "set beside cache.page_table" : "absent, and so is cache.page_table");
  }
  return has_slots ? read_slots(problem, places) : read_pages(problem, places);
}

rope_status_t CacheReader::read_slots(const RopeProblem &problem, CachePlaces *places) {
  const GivenTensor others[] = {
      {"page_indptr", cache_->page_indptr}, {"sequence", cache_->sequence}, {"positions", cache_->positions}};
  const char *const field = first_set(others);
  if (field != nullptr) {
    return fail(kInvalid, "%s: cache.%s is set: it belongs to cache.page_table, not to cache.slots", function_, field);
  }
  return read_for_each_token("cache.slots", cache_->slots, problem, &places->slots, &places->cached_tokens);
}

rope_status_t CacheReader::read_pages(const RopeProblem &problem, CachePlaces *places) {
  Operand *table, *indptr;
  ROPE_TRY(operands_->read_integers("cache.page_table", cache_->page_table, &table));
  ROPE_TRY(operands_->read_integers("cache.page_indptr", cache_->page_indptr, &indptr));
  const View &pages = table->view;
  const bool is_list = indptr != nullptr;
  if (pages.ndim != (is_list ? 1 : 2)) {
    return fail(kInvalid, "%s: cache.page_table has shape %s: it must be %s", function_, ShapeText(pages).text,
                is_list ? "one list, [any], with cache.page_indptr" : "[B, any], or have cache.page_indptr");
  }
  places->table = {pages.data,
                   pages.dtype == ROPE_DTYPE_I64,
                   is_list ? 0 : pages.stride[0],
                   pages.stride[pages.ndim - 1],
                   pages.shape[pages.ndim - 1],
                   is_list ? 0 : pages.shape[0],
                   nullptr,
                   false,
                   0};
  if (is_list) {
    const View &begins = indptr->view;
    if (begins.ndim != 1 || begins.shape[0] == 0) {
      return fail(kInvalid, "%s: cache.page_indptr has shape %s: it must be [B + 1]", function_,
                  ShapeText(begins).text);
    }
    places->table.rows = begins.shape[0] - 1;
    places->table.indptr = begins.data;
    places->table.is_indptr_64_bit = begins.dtype == ROPE_DTYPE_I64;
    places->table.indptr_stride = begins.stride[0];
  }
  int64_t tokens = problem.tokens;
  ROPE_TRY(read_for_each_token("cache.sequence", cache_->sequence, problem, &places->sequence, &tokens));
  if (places->sequence.is_present) places->cached_tokens = tokens;
  ROPE_TRY(read_for_each_token("cache.positions", cache_->positions, problem, &places->positions, &tokens));
  if (places->positions.is_present && tokens < places->cached_tokens) places->cached_tokens = tokens;
  const int64_t sequences = problem.sequences.is_present ? problem.sequences.count : problem.batches;
  if (!places->sequence.is_present && places->table.rows != sequences) {
    return fail(kInvalid,
                "%s: cache.%s has %lld sequences: without cache.sequence it must have those of the call, %lld",
                function_, is_list ? "page_indptr" : "page_table", printable(places->table.rows), printable(sequences));
  }
  if (!places->positions.is_present && (geometry_.num_axes > 1 || problem.table.is_by_token)) {
    return fail(kInvalid, "%s: cache.positions is absent: with %s it is required", function_,
                geometry_.num_axes > 1 ? "several position axes" : "ROPE_TABLE_BY_TOKEN");
  }
  return ROPE_STATUS_SUCCESS;
}

// The shape is [B, S], or for THD [T], or [N] for the first N tokens.
rope_status_t CacheReader::read_for_each_token(const char *field, const rope_tensor_t &given,
                                               const RopeProblem &problem, TokenIntegers *integers, int64_t *tokens) {
  Operand *operand;
  ROPE_TRY(operands_->read_integers(field, given, &operand));
  if (operand == nullptr) return ROPE_STATUS_SUCCESS;
  const View &view = operand->view;
  const bool is_thd = layout_.ndim == 3;
  const bool fits = is_thd ? view.ndim == 1 && view.shape[0] <= problem.tokens
                           : view.ndim == 2 && view.shape[0] == problem.batches && view.shape[1] == problem.tokens;
  if (!fits && is_thd) {
    return fail(kInvalid, "%s: %s has shape %s: it must be [T], [%lld], or [N] for the first N tokens", function_,
                field, ShapeText(view).text, printable(problem.tokens));
  }
  if (!fits) {
    return fail(kInvalid, "%s: %s has shape %s: it must be [B, S], [%lld, %lld]", function_, field,
                ShapeText(view).text, printable(problem.batches), printable(problem.tokens));
  }
  *integers = {
      view.data, true, view.dtype == ROPE_DTYPE_I64, 0, is_thd ? 0 : view.stride[0], view.stride[view.ndim - 1]};
  *tokens = view.shape[view.ndim - 1];
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
