// SPDX-License-Identifier: Apache-2.0
// cases.cpp - reads cases.txt; the first lines of that file define its words
#include "cases.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <numeric>
#include <random>
#include <set>
#include <sstream>

#include "cases_text.hpp"

namespace bench {

namespace {

[[noreturn]] void refuse(const std::string &line, const std::string &why) {
  std::fprintf(stderr, "cases.txt: %s: %s\n", why.c_str(), line.c_str());
  std::exit(2);
}

std::vector<std::string> split(const std::string &text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

std::string value_of(const Words &words, const std::string &key, const std::string &absent = "") {
  for (const auto &word : words) {
    if (word.first == key) return word.second;
  }
  return absent;
}

double number_of(const Words &words, const std::string &key, double absent) {
  const std::string text = value_of(words, key);
  return text.empty() ? absent : std::strtod(text.c_str(), nullptr);
}

int64_t integer_of(const Words &words, const std::string &key, int64_t absent) {
  return static_cast<int64_t>(number_of(words, key, static_cast<double>(absent)));
}

// The index of the value among the names; the first name is the default.
int choice_of(const Words &words, const std::string &key, std::initializer_list<const char *> names) {
  const std::string value = value_of(words, key, *names.begin());
  const auto found = std::find(names.begin(), names.end(), value);
  if (found == names.end()) refuse(text_of(words), key + " is not one of its values");
  return static_cast<int>(found - names.begin());
}

// All combinations of the lists in the values.
std::vector<Words> combinations(const Words &words) {
  std::vector<Words> result = {{}};
  for (const auto &word : words) {
    std::vector<Words> longer;
    for (const Words &begun : result) {
      for (const std::string &value : split(word.second, ',')) {
        longer.push_back(begun);
        longer.back().emplace_back(word.first, value);
      }
    }
    result = longer;
  }
  return result;
}

std::string name_of(const std::string &pattern, const Words &words, const std::string &suffix) {
  std::string name;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '{') {
      name += pattern[i];
      continue;
    }
    const size_t end = pattern.find('}', i);
    name += value_of(words, pattern.substr(i + 1, end - i - 1));
    i = end;
  }
  return name + suffix;
}

std::string suffix_of(const Words &words, bool is_swiglu) {
  std::string suffix = "/" + value_of(words, "dtype", "bf16");
  const bool is_rotation = !is_swiglu && value_of(words, "rotated") != "no";
  if (is_rotation) suffix += "/" + value_of(words, "angles", "computed") + "/" + value_of(words, "place", "in-place");
  if (value_of(words, "launch") == "pdl") suffix += "/pdl";
  return suffix;
}

void read_heads(const Words &words, Case *item) {
  const std::vector<std::string> heads = split(value_of(words, "heads", "0+0"), '+');
  if (heads.size() < 2 || heads.size() > 3) refuse(text_of(words), "heads is not Q+K or Q+K+V");
  item->q_heads = std::atoll(heads[0].c_str());
  item->k_heads = std::atoll(heads[1].c_str());
  item->v_heads = heads.size() > 2 ? std::atoll(heads[2].c_str()) : 0;
}

void read_step(const Words &words, bool is_tiny, Case *item) {
  const auto require = [&](bool is_so, const char *rule) {
    if (!is_so) refuse(text_of(words), rule);
  };
  item->norm = choice_of(words, "norm", {"none", "rms", "layer"});
  item->norm_order = choice_of(words, "norm-order", {"before", "after"});
  item->norm_extent = choice_of(words, "norm-extent", {"head", "token"});
  const rope_dtype_t weight_dtypes[] = {item->dtype, ROPE_DTYPE_F32, 0};
  const int weight = choice_of(words, "weight", {"data", "f32", "none"});
  item->weight_dtype = item->norm != 0 ? weight_dtypes[weight] : 0;
  for (const char *key : {"norm-order", "norm-extent", "weight"})
    require(item->norm != 0 || value_of(words, key).empty(), "a word of the norm without norm=");

  item->cache = static_cast<CacheLayout>(choice_of(words, "cache", {"none", "nhd", "hnd", "packed"}));
  const bool has_cache = item->cache != CacheLayout::kNone;
  constexpr rope_dtype_t kSlotDtypes[] = {0, ROPE_DTYPE_I32, ROPE_DTYPE_I64, ROPE_DTYPE_I32};
  const int slots = choice_of(words, "slots", {"none", "i32", "i64", "pages"});
  item->slot_dtype = kSlotDtypes[slots];
  item->has_page_table = slots == 3;
  item->has_k_out = choice_of(words, "k-out", {"cached-only", "written"}) == 1 || !has_cache;
  require(has_cache == (item->slot_dtype != 0), "cache= and slots= stand together");
  item->pass = static_cast<Pass>(choice_of(words, "pass", {"none", "k", "all"}));
  const bool has_pass = item->pass != Pass::kNone;
  require(!has_cache || (item->k_heads > 0 && (item->v_heads > 0) != has_pass), "a cache takes k, and v or a pass");
  require(!has_pass || (has_cache && !item->has_k_out && item->rotary_dim < item->head_dim),
          "pass=: a part of each head, a cache, no k_out");
  require(item->pass != Pass::kAll || item->is_out_of_place, "pass=all: place=out-of-place");
  require(item->pass != Pass::kOfK || !item->is_out_of_place, "pass=k: place=in-place");
  require(!item->has_page_table || item->layout == ROPE_LAYOUT_THD, "slots=pages: layout=thd");
  require(has_cache || item->v_heads == 0, "v without a cache");
  require(has_cache || value_of(words, "k-out").empty(), "k-out= without a cache");
  require(item->measure != Measure::kCreateNext || item->norm != 0, "create-next without a norm");
  require(item->cache != CacheLayout::kPacked || item->k_heads == item->v_heads, "packed: k and v have as many heads");

  item->is_unrotated = choice_of(words, "rotated", {"yes", "no"}) == 1;
  require(!item->is_unrotated || item->angles == Angles::kComputed, "a table that nothing is turned by");
  require(!item->is_unrotated || item->norm != 0 || (has_cache && item->q_heads == 0), "q that nothing is done to");
  item->is_beside_separate = choice_of(words, "beside", {"none", "separate"}) == 1;
  const int num_parts = (item->norm != 0) + !item->is_unrotated + has_cache;
  require(!item->is_beside_separate || (num_parts > 1 && !item->is_out_of_place && item->out_style == 0),
          "separate calls: of two or more, in place and of one style");
  item->has_weight_gradients = choice_of(words, "gradients", {"inputs", "weights"}) == 1;
  item->accumulates = choice_of(words, "accumulate", {"no", "yes"}) == 1;
  require(!is_step(*item) || !item->is_swiglu, "a step other than RoPE");
  require(!is_step(*item) || !item->is_backward || !has_cache, "a cache backward");
  require(!item->has_weight_gradients || (is_norm_gradient(*item) && item->weight_dtype != 0),
          "gradients=weights: backward, with weights");
  require(!item->accumulates || (item->is_backward && item->is_out_of_place),
          "accumulate=yes: backward, place=out-of-place");
  require(!item->is_packed || item->v_heads == 0 || item->v_heads == item->k_heads, "packed=qkv: heads of v are k's");

  const int codes = choice_of(words, "codes", {"none", "cache", "all", "out"});
  item->has_code_q = codes == 2;
  if (codes != 0) item->code_dtype = ROPE_DTYPE_F8_E4M3;
  require(item->is_swiglu ? codes == 0 || codes == 3 : codes != 3, "codes=out: SwiGLU, and no other codes of SwiGLU");
  require(codes == 0 || codes == 3 || (has_cache && !item->has_k_out), "codes= of caches, without a k_out");
  require(codes != 2 || item->is_out_of_place, "codes=all: place=out-of-place");
  const int scales = choice_of(words, "scales", {"static", "head", "row", "128", "32", "16"});
  item->has_written_scales = scales != 0;
  const int64_t groups[] = {0, 0, item->columns, 128, 32, 16};
  item->scale_group = groups[scales];
  if (scales == 5) item->code_dtype = ROPE_DTYPE_F4_E2M1X2;
  require(scales != 1 || (codes != 0 && item->layout == ROPE_LAYOUT_THD), "scales=head: codes, layout=thd");
  require(item->scale_group == 0 || (codes == 3 && item->columns % item->scale_group == 0),
          "scales=row|128|32|16: codes=out, columns that are whole groups");
  item->has_columns = choice_of(words, "ways", {"row", "both"}) == 1;
  require(!item->has_columns || (scales == 4 && item->rows % 32 == 0 && item->num_experts == 0),
          "ways=both: scales=32, rows that are whole groups, no experts");
  require(codes != 3 || !item->is_backward || item->has_columns, "codes=out direction=backward: ways=both");

  // Twice as many pages as are written. In decode each token has a page of its own, and all pages exceed an L2 cache.
  const int64_t rows = item->batches * item->tokens;
  item->has_page_per_token = item->measure == Measure::kResident || item->measure == Measure::kLatency;
  item->cache_pages = 2 * ((rows + kPageEntries - 1) / kPageEntries);
  if (item->has_page_per_token) item->cache_pages = std::max<int64_t>(2 * rows, is_tiny ? 0 : 2048);
}

Case case_of(const std::string &pattern, const Words &words, bool is_tiny) {
  Case item;
  item.words = words;
  item.group = value_of(words, "class");
  item.is_swiglu = !value_of(words, "columns").empty();
  item.measure = static_cast<Measure>(choice_of(words, "measure",
                                                {"stream", "resident", "cpu", "latency", "create-cold", "first-call",
                                                 "create", "create-next", "call", "between-gemms"}));
  const bool has_suffix = item.measure == Measure::kStream || item.measure == Measure::kResident;
  item.name = name_of(pattern, words, has_suffix ? suffix_of(words, item.is_swiglu) : "");
  constexpr rope_dtype_t kDtypes[] = {ROPE_DTYPE_BF16, ROPE_DTYPE_F16, ROPE_DTYPE_F32};
  item.dtype = kDtypes[choice_of(words, "dtype", {"bf16", "f16", "f32"})];
  item.is_programmatic = choice_of(words, "launch", {"plain", "pdl"}) == 1;
  item.is_backward = choice_of(words, "direction", {"forward", "backward"}) == 1;
  item.num_threads = choice_of(words, "threads", {"all", "1"});

  item.rows = integer_of(words, "rows", 0);
  item.columns = integer_of(words, "columns", 0);
  item.gate = static_cast<Gate>(choice_of(words, "gate", {"separate", "packed", "interleaved"}));
  item.alpha = number_of(words, "alpha", 0);
  item.limit = number_of(words, "limit", 0);
  item.up_offset = number_of(words, "up-offset", 0);
  item.activation = choice_of(words, "activation", {"swiglu", "geglu-erf", "geglu-tanh", "reglu"});
  item.limit_rule = choice_of(words, "limit-rule", {"gate", "activation"});
  item.gate_softcap = number_of(words, "gate-softcap", 0);
  item.up_softcap = number_of(words, "up-softcap", 0);
  item.bias_dtype = std::array<rope_dtype_t, 3>{
      0, item.dtype, ROPE_DTYPE_F32}[static_cast<size_t>(choice_of(words, "bias", {"none", "data", "f32"}))];
  item.num_experts = integer_of(words, "experts", 0);
  item.is_back_to_back = choice_of(words, "expert-rows", {"masked", "back-to-back"}) == 1;

  item.layout = static_cast<rope_layout_t>(ROPE_LAYOUT_BSHD +
                                           (choice_of(words, "layout", {"thd", "bshd", "sbhd", "bhsd"}) + 3) % 4);
  item.batches = integer_of(words, "batch", 1);
  item.tokens = integer_of(words, "tokens", 0);
  read_heads(words, &item);
  item.head_dim = static_cast<int>(integer_of(words, "dim", 0));
  item.rotary_dim = static_cast<int>(integer_of(words, "rotary", item.head_dim));
  item.rotary_offset = static_cast<int>(integer_of(words, "offset", 0));
  item.style = ROPE_STYLE_HALF + choice_of(words, "style", {"half", "interleaved"});
  item.rounds_each = choice_of(words, "rounding", {"none", "each"}) == 1;
  if (!value_of(words, "out-style").empty()) {
    item.out_style = ROPE_STYLE_HALF + choice_of(words, "out-style", {"half", "interleaved"});
  }
  item.theta = number_of(words, "theta", 5e5);
  item.angles = static_cast<Angles>(choice_of(words, "angles", {"computed", "table-f32", "table-16"}));
  item.is_out_of_place = choice_of(words, "place", {"in-place", "out-of-place"}) == 1;
  item.has_yarn = choice_of(words, "scaling", {"none", "yarn"}) == 1;
  item.is_packed = choice_of(words, "packed", {"none", "qkv"}) == 1;
  item.has_row_per_token = !item.is_swiglu && value_of(words, "rows") == "token";
  constexpr rope_dtype_t kPositionDtypes[] = {0, ROPE_DTYPE_I32, ROPE_DTYPE_I64};
  item.position_dtype = kPositionDtypes[choice_of(words, "positions", {"none", "i32", "i64"})];
  item.num_sequences = integer_of(words, "sequences", 0);
  item.axes = static_cast<Axes>(choice_of(words, "axes", {"one", "2d", "mrope"}));
  item.q_pitch = integer_of(words, "pitch", item.head_dim);
  item.q_from = integer_of(words, "from", 0);
  item.is_odd_view = !value_of(words, "view").empty();

  if (is_tiny) {
    item.tokens = std::min<int64_t>(item.tokens, item.num_sequences > 0 ? 61 : 19);
    item.batches = std::min<int64_t>(item.batches, 3);
    // With codes there are whole groups.
    item.rows = std::min<int64_t>(item.rows, value_of(words, "ways").empty() ? 5 : 32);
    item.columns = std::min<int64_t>(item.columns, value_of(words, "codes").empty() ? 264 : 256);
  }
  read_step(words, is_tiny, &item);
  return item;
}

std::string isa_here() {
#if defined(__x86_64__)
  // ROPE_CPU_ISA limits the library, so it overrides what the machine has.
  const char *limit = std::getenv("ROPE_CPU_ISA");
  const std::string held = limit != nullptr ? limit : "";
  const bool may_avx512 = held.empty() || held.find("v4") != std::string::npos || held.find("512") != std::string::npos;
  const bool may_avx2 = may_avx512 || held.find("v3") != std::string::npos || held.find("avx2") != std::string::npos;
  if (may_avx512 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0) return "avx512";
  if (may_avx2 && __builtin_cpu_supports("avx2") != 0) return "avx2";
#endif
  return "other";
}

struct Rule {
  Demand demand;
  Words conditions;
};

bool fits(const Rule &rule, const Case &item) {
  Words facts = {
      {"op", item.is_swiglu  ? "swiglu"
             : is_step(item) ? "step"
                             : "rope"},
      {"data", item.dtype == ROPE_DTYPE_F32 ? "32" : "16"},
      {"span", is_partial(item) ? "partial" : "full"},
      {"heads-in-all", std::to_string(item.q_heads + item.k_heads)},
      {"isa", isa_here()},
  };
  facts.insert(facts.end(), item.words.begin(), item.words.end());
  const Words defaults = {{"dtype", "bf16"},       {"angles", "computed"},   {"place", "in-place"}, {"launch", "plain"},
                          {"measure", "stream"},   {"direction", "forward"}, {"gate", "separate"},  {"threads", "all"},
                          {"norm", "none"},        {"cache", "none"},        {"rotated", "yes"},    {"beside", "none"},
                          {"codes", "none"},       {"scales", "static"},     {"pass", "none"},      {"ways", "row"},
                          {"gradients", "inputs"}, {"accumulate", "no"},     {"experts", "none"},   {"bias", "none"}};
  facts.insert(facts.end(), defaults.begin(), defaults.end());
  for (const auto &condition : rule.conditions) {
    if (condition.first == "mb") {
      const std::vector<std::string> band = split(condition.second, '-');
      const double megabytes = bytes_moved(item) / 1e6;
      if (megabytes < std::strtod(band[0].c_str(), nullptr)) return false;
      if (band.size() > 1 && megabytes >= std::strtod(band[1].c_str(), nullptr)) return false;
      continue;
    }
    const std::vector<std::string> wanted = split(condition.second, ',');
    if (std::find(wanted.begin(), wanted.end(), value_of(facts, condition.first)) == wanted.end()) return false;
  }
  return true;
}

const std::set<std::string> &case_keys() {
  static const std::set<std::string> keys = {
      "class",   "measure",   "layout",    "batch",      "tokens",      "heads",        "dim",        "rotary",
      "offset",  "style",     "theta",     "angles",     "place",       "packed",       "positions",  "rows",
      "axes",    "sequences", "out-style", "rounding",   "scaling",     "pitch",        "from",       "view",
      "alpha",   "columns",   "gate",      "limit",      "up-offset",   "direction",    "dtype",      "launch",
      "threads", "margin",    "norm",      "norm-order", "norm-extent", "weight",       "cache",      "slots",
      "k-out",   "rotated",   "beside",    "activation", "limit-rule",  "gate-softcap", "up-softcap", "bias",
      "experts", "codes",     "scales",    "ways",       "pass",        "gradients",    "accumulate", "expert-rows"};
  return keys;
}

// The number of channels of a head that are read, and written to q_out or k_out.
int64_t touched_channels(const Case &item) {
  return item.is_out_of_place || item.norm != 0 ? item.head_dim : item.rotary_dim;
}

}  // namespace

int64_t size_of(rope_dtype_t dtype) {
  switch (dtype) {
    case ROPE_DTYPE_F16:
    case ROPE_DTYPE_BF16:
      return 2;
    case ROPE_DTYPE_F32:
    case ROPE_DTYPE_I32:
      return 4;
    case ROPE_DTYPE_F8_E4M3:
    case ROPE_DTYPE_F8_E8M0:
    case ROPE_DTYPE_F4_E2M1X2:
      return 1;
    default:
      return 8;
  }
}

std::vector<int64_t> expert_rows_of(const Case &item) {
  std::mt19937_64 random(2026);
  std::vector<int64_t> rows(static_cast<size_t>(item.num_experts));
  for (size_t i = 0; i < rows.size(); i += 2) {
    rows[i] = static_cast<int64_t>(random() % static_cast<uint64_t>(item.rows + 1));
  }
  return rows;
}

rope_dtype_t scale_dtype_of(const Case &item) {
  return item.scale_group == 32 ? ROPE_DTYPE_F8_E8M0 : item.scale_group == 16 ? ROPE_DTYPE_F8_E4M3 : ROPE_DTYPE_F32;
}

int64_t existing_rows_of(const Case &item) {
  if (item.num_experts == 0) return item.rows;
  const std::vector<int64_t> rows = expert_rows_of(item);
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

int64_t room_of_rows(const Case &item) {
  return item.num_experts == 0 ? item.rows : item.num_experts * item.rows;
}

double bytes_moved(const Case &item) {
  const double size = static_cast<double>(size_of(item.dtype));
  if (item.is_swiglu) {
    const double elements = static_cast<double>(existing_rows_of(item) * item.columns);
    if (item.code_dtype == 0) return elements * size * (item.is_backward ? 5 : 3);
    const double scale_size = static_cast<double>(size_of(scale_dtype_of(item)));
    const double code_size = item.code_dtype == ROPE_DTYPE_F4_E2M1X2 ? 0.5 : 1;
    const double scales = item.scale_group == 0 ? 0 : elements / static_cast<double>(item.scale_group);
    const double inputs = item.is_backward ? 3 : 2, outputs = (item.is_backward ? 2 : 1) * (item.has_columns ? 2 : 1);
    return elements * inputs * size + outputs * (elements * code_size + scales * scale_size);
  }
  const double tokens = static_cast<double>(item.batches * item.tokens);
  if (item.cache == CacheLayout::kNone) {
    const double times = is_norm_gradient(item) || item.accumulates ? 3 : 2;
    return times * size * tokens * static_cast<double>((item.q_heads + item.k_heads) * touched_channels(item));
  }
  const double code_size = item.code_dtype != 0 ? 1 : size, q_size = size + (item.has_code_q ? code_size : size);
  const double of_q = q_size * static_cast<double>(item.q_heads * touched_channels(item));
  const double of_k_out = item.has_k_out ? size * static_cast<double>(item.k_heads * touched_channels(item)) : 0;
  const double cached = (size + code_size) * static_cast<double>((item.k_heads + item.v_heads) * item.head_dim);
  const int64_t scaled_heads =
      item.has_written_scales ? (item.has_code_q ? item.q_heads : 0) + item.k_heads + item.v_heads : 0;
  return tokens * (of_q + of_k_out + cached + static_cast<double>(scaled_heads * size_of(ROPE_DTYPE_F32)));
}

double bytes_in_place(const Case &item) {
  if (item.is_swiglu || (item.is_out_of_place && !item.accumulates)) return 0;
  const int64_t heads = item.batches * item.tokens * (item.q_heads + (item.has_k_out ? item.k_heads : 0));
  return static_cast<double>(size_of(item.dtype) * heads * touched_channels(item));
}

bool is_step(const Case &item) {
  return item.norm != 0 || item.cache != CacheLayout::kNone || item.is_unrotated || item.accumulates;
}

bool is_norm_gradient(const Case &item) {
  return item.norm != 0 && item.is_backward;
}

bool is_partial(const Case &item) {
  return !item.is_swiglu && !item.is_odd_view && !is_step(item) &&
         (item.rotary_dim < item.head_dim || item.q_pitch > item.head_dim);
}

std::vector<Case> all_cases(bool is_tiny) {
  std::vector<Case> cases;
  std::vector<Rule> rules;
  std::set<std::string> names;
  std::string text = kCasesText;
  for (size_t at; (at = text.find("\\\n")) != std::string::npos;) text.replace(at, 2, " ");
  for (const std::string &line : split(text, '\n')) {
    std::stringstream stream(line.substr(0, line.find('#')));
    std::string kind, pattern;
    if (!(stream >> kind)) continue;
    if (kind == "case") stream >> pattern;
    Words words;
    for (std::string word; stream >> word;) {
      const size_t at = word.find('=');
      if (at == std::string::npos) refuse(line, word + " is not key=value");
      words.emplace_back(word.substr(0, at), word.substr(at + 1));
    }
    if (kind == "case") {
      for (const auto &word : words) {
        if (case_keys().count(word.first) == 0) refuse(line, word.first + " is not a key");
      }
      for (const Words &one : combinations(words)) {
        cases.push_back(case_of(pattern, one, is_tiny));
        if (!names.insert(cases.back().name).second) refuse(line, cases.back().name + " stands twice");
      }
    } else if (kind == "demand" && !words.empty()) {
      const Words first = {words.front()};
      Rule rule;
      constexpr const char *kMetrics[] = {"", "share", "scale-share", "us", "us-above", "us-scaled", "separate-share"};
      for (int i = 1; i < 7; ++i) {
        if (first[0].first == kMetrics[i]) rule.demand.metric = static_cast<Metric>(i);
      }
      if (rule.demand.metric == Metric::kNone) refuse(line, "the first word is not a metric");
      rule.demand.bound = std::strtod(first[0].second.c_str(), nullptr);
      const bool is_scaled = rule.demand.metric == Metric::kMicrosecondsScaled;
      const std::vector<std::string> fraction = split(first[0].second, '/');
      if (fraction.size() != (is_scaled ? 2 : 1)) refuse(line, is_scaled ? "not BOUND/COPY" : "not a number");
      if (is_scaled) rule.demand.copy_us = std::strtod(fraction[1].c_str(), nullptr);
      if (is_scaled && !(rule.demand.copy_us > 0)) refuse(line, "COPY is not above 0");
      rule.conditions.assign(words.begin() + 1, words.end());
      rules.push_back(rule);
    } else {
      refuse(line, "not case or demand");
    }
  }
  for (Case &item : cases) {
    if (is_tiny) break;
    const auto rule = std::find_if(rules.begin(), rules.end(), [&](const Rule &each) { return fits(each, item); });
    if (rule == rules.end()) continue;
    item.demand = rule->demand;
    if (item.demand.metric == Metric::kShare) item.demand.bound -= number_of(item.words, "margin", 0);
  }
  return cases;
}

std::string text_of(const Words &words) {
  std::string text;
  for (const auto &word : words) text += (text.empty() ? "" : " ") + word.first + "=" + word.second;
  return text;
}

}  // namespace bench
