#include "server/api/request_fields.h"

#include <algorithm>
#include <limits>
#include <set>

#include "core/error.h"
#include "server/api/json_body.h"

namespace switchyard {
namespace {

// Each word is banned at the start of a text and after a space, as in vLLM. The word is tokenized
// without and with a leading space. The second form is added if it has the same number of tokens
// and a different first token.
std::vector<std::vector<int32_t>> ParseBadWords(const Tokenizer& tokenizer, const Fields& f) {
  std::vector<std::vector<int32_t>> words;
  for (const std::string& word : f.Strings("bad_words")) {
    if (word.empty())
      throw InvalidField(f.Name("bad_words"), "{} has an empty string", f.Name("bad_words"));
    const std::string bare = word.substr(std::min(word.find_first_not_of(' '), word.size()));
    std::vector<int32_t> start = tokenizer.Encode(bare.empty() ? word : bare, false);
    std::vector<int32_t> spaced = tokenizer.Encode(" " + bare, false);
    const bool both = !start.empty() && spaced.size() == start.size() && spaced[0] != start[0];
    if (!start.empty()) words.push_back(std::move(start));
    if (both) words.push_back(std::move(spaced));
  }
  return words;
}

std::vector<std::string> ParseStop(const Fields& f) {
  const Json* stop = f.Find("stop");
  if (stop && *stop == "") return {};  // no stop string
  return f.Strings("stop");
}

float Single(const Fields& f, const char* key, float otherwise) {
  return static_cast<float>(f.Number(key, otherwise));
}

}  // namespace

void ParseSamplingFields(const Tokenizer& tokenizer, const Fields& f, GenerationSpec* spec) {
  SamplingParams& s = spec->sampling;
  s.temperature = Single(f, "temperature", s.temperature);
  s.top_p = Single(f, "top_p", s.top_p);
  s.top_k = f.Int32("top_k", s.top_k);
  if (s.top_k == 0) s.top_k = -1;  // 0 disables the filter, as in transformers, llama.cpp and vLLM
  s.min_p = Single(f, "min_p", s.min_p);
  s.frequency_penalty = Single(f, "frequency_penalty", s.frequency_penalty);
  s.presence_penalty = Single(f, "presence_penalty", s.presence_penalty);
  s.repetition_penalty = Single(f, "repetition_penalty", s.repetition_penalty);
  s.stop_token_ids = f.Ids("stop_token_ids");
  s.ignore_eos = f.Bool("ignore_eos", s.ignore_eos);
  s.logit_bias = f.LogitBias("logit_bias");
  s.allowed_token_ids = f.Ids("allowed_token_ids");
  s.bad_words = ParseBadWords(tokenizer, f);
  spec->stop = ParseStop(f);
  const bool trimmed = !f.Bool("no_stop_trim", false);
  spec->keep_stop = f.Bool("include_stop_str_in_output", false) || !trimmed;
  spec->skip_special_tokens = f.Bool("skip_special_tokens", true);
}

const Json* ValueForPrompt(const Fields& f, const char* key, size_t i, size_t prompts) {
  const Json* field = f.Find(key);
  if (!field || !field->is_array()) return field;
  if (field->size() != prompts)
    throw InvalidField(f.Name(key), "{} has {} entries for {} prompts", f.Name(key), field->size(),
                       prompts);
  return (*field)[i].is_null() ? nullptr : &(*field)[i];
}

void ParseRequestId(const Fields& f, const char* key, size_t i, size_t prompts,
                    GenerationSpec* spec) {
  // Names are compared here, because Front rejects only names of open generations. One generation
  // of a request may end before the next one is submitted.
  if (const Json* all = f.Find(key); i == 0 && all && all->is_array()) {
    std::set<Json> names;
    for (const Json& name : *all)
      if (!name.is_null() && !names.insert(name).second)
        throw InvalidField(f.Name(key), "{} contains the same name twice", f.Name(key));
  }
  const Json* name = ValueForPrompt(f, key, i, prompts);
  if (!name) return;
  if (!name->is_string()) throw InvalidField(f.Name(key), "{} is not a string", f.Name(key));
  spec->name = name->get<std::string>();
  if (prompts == 1 || f.Find(key)->is_array()) return;
  spec->batch_name = spec->name;
  spec->name += fmt::format("_{}", i);
}

std::string ParseCacheSalt(const Fields& f, size_t i, size_t prompts) {
  std::string salt;
  for (const char* key : {"cache_salt", "extra_key"}) {
    const Json* value = ValueForPrompt(f, key, i, prompts);
    if (!value || *value == "") continue;
    if (!value->is_string()) throw InvalidField(f.Name(key), "{} is not a string", f.Name(key));
    const auto& text = value->get_ref<const std::string&>();
    // The length makes the concatenation unambiguous.
    salt += fmt::format("{}:{}:{}", key, text.size(), text);
  }
  return salt;
}

int32_t ParsePriority(const ServerArgs& args, const Fields& f) {
  constexpr int32_t kLowest = std::numeric_limits<int32_t>::min();
  const int32_t value = f.Int32("priority", 0);
  if (!args.engine.priority_scheduling) {
    if (value != 0)
      throw InvalidField(
          "priority",
          "priority is not 0, which needs the server flag --enable-priority-scheduling");
    return 0;
  }
  if (!f.Has("priority")) return kLowest;
  return args.low_priority_values_first ? -std::max(value, kLowest + 1) : value;
}

namespace {

// Limits of one request, including copies. Each generation has its own copy of the prompt in the
// request, in Front and on the ranks.
constexpr int64_t kMaxGenerations = 4096, kMaxPromptTokens = int64_t{1} << 24;

}  // namespace

void AddCopies(const Front& front, GenerationSpec spec, int64_t n, const ClientNames& names,
               std::vector<GenerationSpec>& specs) {
  try {
    front.Check(spec);
  } catch (const Error&) {
    RethrowWithClientNames(names);
  }
  if (static_cast<int64_t>(specs.size()) + n > kMaxGenerations)
    throw InvalidField("n", "n: more than {} generations in one request", kMaxGenerations);
  auto tokens = static_cast<int64_t>(spec.input_ids.size()) * n;
  for (const GenerationSpec& other : specs) tokens += static_cast<int64_t>(other.input_ids.size());
  if (tokens > kMaxPromptTokens)
    throw InvalidField("n",
                       "n: more than {} prompt tokens in one request, counted once per generation",
                       kMaxPromptTokens);
  int64_t alternatives = CountPromptAlternatives(spec) * n;
  for (const GenerationSpec& other : specs) alternatives += CountPromptAlternatives(other);
  if (alternatives > kMaxPromptAlternatives)
    throw Invalid(
        "the request asks for log-probabilities of more than {} alternative tokens at prompt "
        "positions, summed over its generations: want fewer tokens per position, fewer "
        "generations, or a larger logprob_start_len",
        kMaxPromptAlternatives);
  for (int64_t copy = 0; copy < n; ++copy) {
    specs.push_back(spec);
    specs.back().copy = static_cast<int32_t>(copy);
    // Both servers of the request compute the same index.
    if (specs.back().kv) specs.back().kv->key.index = static_cast<int32_t>(specs.size()) - 1;
    if (spec.sampling.seed) specs.back().sampling.seed = *spec.sampling.seed + copy;
  }
}

namespace {

std::string NameOf(const ClientNames& names, const std::string& parameter) {
  const auto found = names.find(parameter);
  return found == names.end() ? parameter : found->second;
}

}  // namespace

void RethrowWithClientNames(const ClientNames& names) {
  try {
    throw;
  } catch (const ContextLengthError& e) {
    throw RequestError(ErrorKind::kInvalid, NameOf(names, "prompt"), e.what(),
                       "context_length_exceeded");
  } catch (const ParameterError& e) {
    const std::string name = NameOf(names, e.parameter);
    throw RequestError(ErrorKind::kInvalid, name, name + " " + e.problem);
  }
}

std::optional<int32_t> ParseDataParallelRank(const Fields& f) {
  std::optional<int32_t> rank;
  for (const char* key : {"routed_dp_rank", "data_parallel_rank"}) {
    if (!f.Has(key)) continue;
    const int32_t value = f.Int32(key, 0);
    if (rank && *rank != value)
      throw InvalidField("routed_dp_rank",
                         "routed_dp_rank is {} but data_parallel_rank is {}: they are two names of "
                         "one parameter, send only one",
                         *rank, value);
    rank = value;
  }
  return rank;
}

void CheckModelName(const Service& service, const std::string& name) {
  if (name == service.model.name) return;
  throw RequestError(ErrorKind::kNotFound, "model",
                     fmt::format("The model `{}` does not exist.", name), "model_not_found");
}

void CheckModel(const Service& service, const Fields& f) {
  const std::string name = f.String("model", "");
  if (!name.empty() && name != "default") CheckModelName(service, name);
}

std::optional<KvRoom> ParseBootstrap(const ServerArgs& args, const Fields& f, size_t i,
                                     size_t prompts) {
  Json own = Json::object();
  for (const char* key : {"bootstrap_room", "bootstrap_host", "bootstrap_port"}) {
    const Json* value = ValueForPrompt(f, key, i, prompts);
    if (!value || value->is_null()) continue;
    if (!args.engine.disaggregated())
      throw InvalidField(f.Name(key),
                         "{} is not supported: this server has no --disaggregation-mode",
                         f.Name(key));
    own[key] = *value;
  }
  const Fields fields(own);
  if (!fields.Has("bootstrap_room")) return std::nullopt;
  KvRoom room;
  room.key.room = static_cast<uint64_t>(
      fields.Int("bootstrap_room", 0, 0, std::numeric_limits<int64_t>::max()));
  // Prompts of one HTTP request may have a common room.
  room.key.index = static_cast<int32_t>(i);
  room.host = fields.String("bootstrap_host", "");
  room.port =
      static_cast<int>(fields.Int("bootstrap_port", std::max(args.bootstrap_port, 1), 1, 65535));
  if (args.engine.disaggregation_mode == "decode" && room.host.empty())
    throw InvalidField("bootstrap_host",
                       "bootstrap_host is missing: want the host of the prefill worker");
  return room;
}

}  // namespace switchyard
