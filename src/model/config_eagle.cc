#include "model/config_eagle.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>

#include "core/error.h"
#include "core/format.h"
#include "core/regular_file.h"
#include "model/config_reader.h"
#include "model/families/common.h"

namespace switchyard {
namespace {

constexpr uint64_t kMaxConfigBytes = 16 << 20;
constexpr std::string_view kLayerIds = "eagle_aux_hidden_state_layer_ids";

// The layer of an EAGLE head is a Llama layer for any architecture name of the head.
constexpr std::string_view kAsLlama =
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama"})";

constexpr std::array<std::string_view, 3> kEagleNames = {
    "LlamaForCausalLM", "LlamaForCausalLMEagle", "EagleLlamaForCausalLM"};
constexpr std::array<std::string_view, 3> kEagle3Names = {
    "LlamaForCausalLM", "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"};

// Keys that LoadEagleConfig reads or refuses.
constexpr std::string_view kOwnKeys[] = {
    "add_para_norm",       "bias",    "draft_vocab_size", "eagle_config",
    "hot_vocab_size",      kLayerIds, "norm_before_fc",   "target_hidden_size",
    "norm_before_residual"};

void CheckArchitecture(const ConfigReader& file, bool inner_rows) {
  if (file.Has("speculators_config"))
    throw Invalid(
        "{}: a checkpoint of speculators; want the layout of SafeAILab/EAGLE, SGLang or vLLM, with "
        "the layer's settings at the top",
        file.Where("speculators_config"));
  const auto found = file.Strings("architectures");
  const auto& names = inner_rows ? kEagle3Names : kEagleNames;
  if (found.empty() || std::ranges::count(names, found.front())) return;
  throw Invalid("{} is \"{}\"; a head of {} has one of {}", file.Where("architectures"),
                found.front(), inner_rows ? "EAGLE3" : "EAGLE", Joined(names, ", "));
}

void CheckLayers(const ConfigReader& file, const std::vector<int64_t>& ids, int64_t layers) {
  const bool rise = std::ranges::adjacent_find(ids, std::ranges::greater_equal()) == ids.end();
  if (!ids.empty() && rise && ids.front() >= 0 && ids.back() <= layers) return;
  throw Invalid(
      "{}: the head reads the inputs of layers {} of the target, which has {}; want different "
      "layers in ascending order, given by {}",
      file.Where("eagle_config"), Joined(ids, ", "), layers, kLayerIds);
}

// The layers of the target whose inputs the head takes. SGLang's eagle_config names layers by their
// outputs; vLLM's key at the top names them by their inputs.
void ReadTargetLayers(const ConfigReader& file, int64_t layers, ModelConfig* head) {
  std::vector<int64_t>& ids = head->eagle->target_layers;
  ids = file.Ints(kLayerIds, 0, kMaxCount);
  if (const auto own = file.Object("eagle_config")) {
    RequireTrue(*own, "use_aux_hidden_state");
    const std::vector<int64_t> outputs = own->Ints(kLayerIds, -1, kMaxCount);
    if (!outputs.empty()) ids.clear();
    for (const int64_t layer : outputs) ids.push_back(layer + 1);
    for (const std::string& key : own->Unread())
      head->unknown_keys.push_back("eagle_config." + key);
  }
  if (ids.empty()) {
    ids = {2, layers / 2, layers - 3};
    std::ranges::sort(ids);
  }
  CheckLayers(file, ids, layers);
}

void ReadEagle3(const ConfigReader& file, const ModelConfig& target, ModelConfig* head) {
  if (target.streams)
    throw Invalid(
        "--speculative-algorithm EAGLE3: {} has several residual streams; want NEXTN, EAGLE, "
        "STANDALONE or NGRAM",
        target.architecture);
  EagleConfig& eagle = *head->eagle;
  eagle.projection_bias = file.BoolOr("bias", false);
  eagle.norm_before_residual = file.BoolOr("norm_before_residual", false);
  RequireFalse(file, "norm_before_fc");
  eagle.target_hidden =
      file.Int({file.Has("target_hidden_size") ? "target_hidden_size" : "hidden_size"},
               target.hidden, target.hidden);
  eagle.own_embedding = head->hidden != target.hidden;
  ReadTargetLayers(file, target.num_layers(), head);
  // If the key is absent, lm_head is the target's.
  const int64_t draft_vocab = file.IntOr({"draft_vocab_size"}, 0, 1, head->vocab_size);
  if (draft_vocab == 0) return;
  if (head->tie_embeddings)
    throw Invalid("{} is {} and tie_word_embeddings is true; want one of the two",
                  file.Where("draft_vocab_size"), draft_vocab);
  eagle.own_head = true;
  if (draft_vocab < head->vocab_size) eagle.draft_vocab = draft_vocab;
}

void ReadEagle(const ConfigReader& file, const ModelConfig& target, ModelConfig* head) {
  EagleConfig& eagle = *head->eagle;
  eagle.projection_bias = file.BoolOr("bias", true);
  RequireFalse(file, "add_para_norm");  // some heads norm both halves of fc's input
  if (file.Has("hot_vocab_size") || file.Has("draft_vocab_size"))
    throw Invalid("{}: an EAGLE head has the target's whole vocabulary",
                  file.Where(file.Has("hot_vocab_size") ? "hot_vocab_size" : "draft_vocab_size"));
  eagle.target_hidden = file.Int({"hidden_size"}, target.hidden, target.hidden);
  // The head reads rows after the final norm, whose weight includes the scale of logits.
  if (target.logit_scale != 1.0f)
    throw Invalid(
        "--speculative-algorithm EAGLE: {} scales its logits; want EAGLE3, STANDALONE or "
        "NGRAM",
        target.architecture);
}

void ShareVocabulary(const ModelConfig& target, ModelConfig* head) {
  EagleConfig& eagle = *head->eagle;
  if (head->vocab_size != target.vocab_size)
    throw Invalid("the head's vocab_size is {}; want the target's vocabulary of {} tokens",
                  head->vocab_size, target.vocab_size);
  if (head->tie_embeddings && !target.tie_embeddings)
    throw Invalid("the head's tie_word_embeddings is true, and the target's is false; want false");
  if (eagle.own_embedding && !eagle.own_head)
    throw Invalid(
        "the EAGLE head's hidden size is {} and the target's is {}, so the two cannot share "
        "lm_head; want draft_vocab_size, and lm_head in the EAGLE checkpoint",
        head->hidden, target.hidden);
  head->head_bias = !eagle.own_head && target.head_bias;
}

}  // namespace

ModelConfig LoadEagleConfig(const std::filesystem::path& dir, const ModelConfig& target,
                            bool inner_rows) {
  const std::string path = (dir / "config.json").string();
  const ConfigReader file(ReadRegularFile(path, kMaxConfigBytes), path);
  CheckArchitecture(file, inner_rows);
  ModelConfig head = LoadModelConfig(dir, kAsLlama);
  if (head.num_layers() != 1)
    throw Invalid("{} is {}; want heads of one layer", file.Where("num_hidden_layers"),
                  head.num_layers());
  std::erase_if(head.unknown_keys,
                [](const std::string& key) { return std::ranges::count(kOwnKeys, key) > 0; });
  head.eagle = EagleConfig{.inner_rows = inner_rows};
  if (inner_rows) {
    head.attention.input_width = 2 * head.hidden;
    ReadEagle3(file, target, &head);
  } else {
    ReadEagle(file, target, &head);
  }
  ShareVocabulary(target, &head);
  return head;
}

}  // namespace switchyard
