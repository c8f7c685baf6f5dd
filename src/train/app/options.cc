#include "train/app/options.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "model/config_reader.h"
#include "model/families/family.h"
#include "text/tokenizer/tokenizer.h"
#include "train/device/checks.h"

namespace switchyard::train {

Layout LayoutOf(const TrainingOptions& options, const ModelConfig& config) {
  Layout layout = options.layout;
  // CheckLayout rejects sizes below 1.
  if (layout.dp == 0 && layout.tp > 0 && layout.ep > 0) {
    layout.dp = std::lcm(layout.tp, layout.ep) / layout.tp;
  }
  CheckLayout(layout, config);
  return layout;
}

void CheckDevice(const TrainingOptions& options, const Layout& layout, const ModelConfig& config) {
  const bool fp8 = options.products == ProductDtype::kFp8;
  if (options.device_ops == nullptr) {
    if (fp8) throw Invalid("--compute-dtype fp8: FP8 products run on GPUs; want --device cuda");
    return;
  }
  const auto refuse = [](bool is, const char* flag, const char* want) {
    if (is) throw Invalid("--device cuda: {} is not supported yet; want {}", flag, want);
  };
  refuse(layout.tp > 1, "--tp", "--tp 1 with --dp and --ep");
  refuse(layout.pp > 1, "--pp", "--pp 1 with --dp and --ep");
  if (options.products == ProductDtype::kFloat32)
    throw Invalid(
        "--device cuda: products have bfloat16 or FP8 operands; want --compute-dtype bfloat16 or "
        "fp8");
  refuse(options.lora.rank > 0, "--lora-rank", "--lora-rank 0");
  refuse(options.losses.mtp_only, "--train-only mtp", "--train-only all");
  refuse(options.recompute != Recompute::kNone, "--recompute", "--recompute none");
  refuse(options.learner.order != schedule::Order::kPlain, "--schedule", "--schedule plain");
  if (options.early_sums)
    throw Invalid("--device cuda: gradients are always summed early; leave --early-sums out");
  refuse(options.synchronous, "--exchange sync", "--exchange async");
  CheckDeviceModel(config, options.losses);
  if (fp8) CheckFp8Widths(config);
}

LoraOptions LoraOf(const TrainingOptions& options, const ModelConfig& config) {
  LoraOptions lora = options.lora;
  if (lora.rank == 0) return lora;
  if (lora.alpha == 0) lora.alpha = 2.0 * static_cast<double>(lora.rank);
  const std::vector<std::string> names = LoraTargets(config);
  for (const std::string& target : lora.targets) {
    if (std::ranges::find(names, target) == names.end())
      throw Invalid("--lora-targets {}: no linear layer of {} has this name; want some of {}",
                    target, config.architecture, Joined(names, ", "));
  }
  if (lora.targets.empty()) lora.targets = names;
  if (options.init_from.empty())
    throw Error(ErrorKind::kInvalid, "--lora-rank needs trained weights, which the adapters change",
                "name their checkpoint with --init-from");
  if (options.losses.mtp_only) throw Invalid("--lora-rank: not with --train-only mtp");
  if (options.learner.bias_step > 0)
    throw Invalid("--lora-rank: selection biases are frozen; want --bias-step 0, not {}",
                  options.learner.bias_step);
  return lora;
}

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::array kTokenizerFiles = {
    "tokenizer.json",      "tiktoken.model",     "tokenizer.model",         "tokenizer_config.json",
    "chat_template.jinja", "chat_template.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json",          "merges.txt"};

std::string Read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw NotFound("{}: cannot be read", path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

Json ReadObject(const fs::path& path) {
  Json json = Json::parse(WithoutInfinities(Read(path)), nullptr, false);
  if (!json.is_object()) throw Invalid("{}: not a JSON object", path.string());
  return json;
}

// Skips the write if the file already has this content. So a resumed run does not fail here if the
// disk is full.
void Write(const fs::path& path, const std::string& text) {
  std::error_code missing;
  if (fs::exists(path, missing) && Read(path) == text) return;
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) throw Resource("{}: cannot be written", path.string());
}

// Throws unless the file of the run, which rank 0 has written, has this content.
void CheckFound(const fs::path& path, const std::string& text) {
  std::error_code missing;
  if (fs::exists(path, missing) && Read(path) == text) return;
  throw Error(
      ErrorKind::kInvalid,
      fmt::format("{}: is not the file that rank 0 has written for this run", path.string()),
      "--output must be one directory that all hosts share, --model and --tokenizer-path must have "
      "the same content on all hosts, and with --lora-rank --init-from must be the same path");
}

// The id of a token such as "eos_token"; null: none.
Json IdOf(const char* name, const Tokenizer& tokenizer) {
  const std::optional<int32_t> id = tokenizer.NamedToken(name);
  return id ? Json(*id) : Json();
}

struct SpecialIds {
  Json eos, bos, pad;  // null: none
  void AddTo(Json* json) const {
    const auto add = [&](const char* key, const Json& id) {
      if (!id.is_null() && (!json->contains(key) || (*json)[key].is_null())) (*json)[key] = id;
    };
    add("bos_token_id", bos);
    add("eos_token_id", eos);
    add("pad_token_id", pad);
  }
};

int64_t MtpLayers(const Json& config, int64_t requested, const fs::path& path) {
  if (requested >= 0) return requested;
  if (!config.contains("num_nextn_predict_layers")) return 0;
  const Json& layers = config["num_nextn_predict_layers"];
  if (layers.is_null()) return 0;
  if (!layers.is_number_unsigned() || layers.get<uint64_t>() > 16) {
    throw Invalid("{}: num_nextn_predict_layers is {}, want 0 to 16", path.string(), layers.dump());
  }
  return layers.get<int64_t>();
}

// adapter_config.json of PEFT.
Json DescriptionOf(const LoraOptions& lora, const fs::path& base) {
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", base.string()},
          {"r", lora.rank},
          {"lora_alpha", lora.alpha},
          {"lora_dropout", 0.0},
          {"target_modules", lora.targets},
          {"bias", "none"},
          {"fan_in_fan_out", false},
          {"inference_mode", true},
          {"init_lora_weights", true},
          {"modules_to_save", nullptr}};
}

void Complete(const TrainingOptions& options, const ModelConfig& model, int64_t mtp_layers,
              Json* config) {
  for (const Family& family : Families()) {
    if (family.architecture != model.architecture) continue;
    if (!config->contains("architectures")) {
      (*config)["architectures"] = Json::array({std::string(family.architecture)});
    }
    if (!config->contains("model_type")) (*config)["model_type"] = std::string(family.model_type);
    break;
  }
  const char* dtype = options.trainer.files.dtype == DType::kBF16 ? "bfloat16" : "float32";
  (*config)[config->contains("dtype") ? "dtype" : "torch_dtype"] = dtype;
  if (config->contains("dtype") && config->contains("torch_dtype")) {
    (*config)["torch_dtype"] = dtype;
  }
  if (mtp_layers > 0 || config->contains("num_nextn_predict_layers")) {
    (*config)["num_nextn_predict_layers"] = mtp_layers;
  }
}

}  // namespace

TrainedConfig ReadTrainedConfig(const TrainingOptions& options) {
  TrainedConfig out;
  out.path = fs::is_directory(options.model) ? options.model / "config.json" : options.model;
  if (!fs::exists(out.path)) throw NotFound("--model {}: no such file", out.path.string());
  out.json = ReadObject(out.path);
  try {
    out.config = ParseModelConfig(out.json.dump());
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("--model {}: {}", out.path.string(), error.what()));
  }
  out.mtp_layers = MtpLayers(out.json, options.mtp_layers, out.path);
  return out;
}

ModelFiles PrepareModelFiles(const TrainingOptions& options, RunFiles run_files) {
  const TrainedConfig model = ReadTrainedConfig(options);
  const fs::path model_dir = model.path.parent_path();
  const fs::path tokenizer_dir = options.tokenizer.empty() ? model_dir : options.tokenizer;
  if (!Tokenizer::HasFiles(tokenizer_dir)) {
    throw Error(ErrorKind::kNotFound,
                fmt::format("--tokenizer-path {}: no tokenizer.json, tiktoken.model or "
                            "tokenizer.model",
                            tokenizer_dir.string()),
                "switchyard train-tokenizer creates a tokenizer.json");
  }
  const auto tokenizer = Tokenizer::FromDirectory(tokenizer_dir);
  if (tokenizer->VocabSize() > model.config.vocab_size) {
    throw Invalid("{}: vocab_size is {}, but the tokenizer in {} has {} tokens",
                  model.path.string(), model.config.vocab_size, tokenizer_dir.string(),
                  tokenizer->VocabSize());
  }
  if (options.packing.length > model.config.max_position) {
    throw Invalid("--length {}: exceeds the model's max_position_embeddings {}",
                  options.packing.length, model.config.max_position);
  }
  ModelFiles out{.config = model.config, .mtp_layers = model.mtp_layers, .files = {}};
  Json config = model.json;
  Complete(options, model.config, model.mtp_layers, &config);
  const SpecialIds ids{.eos = IdOf("eos_token", *tokenizer),
                       .bos = IdOf("bos_token", *tokenizer),
                       .pad = IdOf("pad_token", *tokenizer)};
  ids.AddTo(&config);

  const fs::path dir = options.trainer.output / ".files";
  const bool writes = run_files == RunFiles::kWrite;
  std::error_code failed;
  if (writes) fs::create_directories(dir, failed);
  if (failed) throw Resource("--output {}: {}", options.trainer.output.string(), failed.message());
  const auto add = [&](const char* name, const std::string& text) {
    if (writes) {
      Write(dir / name, text);
    } else {
      CheckFound(dir / name, text);
    }
    out.files.push_back(dir / name);
  };
  add("config.json", config.dump(2) + "\n");
  Json generation =
      fs::is_directory(options.model) && fs::exists(model_dir / "generation_config.json")
          ? ReadObject(model_dir / "generation_config.json")
          : Json::object();
  ids.AddTo(&generation);
  if (!generation.empty()) add("generation_config.json", generation.dump(2) + "\n");
  if (const LoraOptions lora = LoraOf(options, model.config); lora.rank > 0) {
    add(kLoraFile, DescriptionOf(lora, options.init_from).dump(2) + "\n");
  } else if (writes) {
    fs::remove(dir / kLoraFile, failed);
  }
  for (const char* name : kTokenizerFiles) {
    if (fs::exists(tokenizer_dir / name)) {
      add(name, Read(tokenizer_dir / name));
    } else if (writes) {
      // May be left over from an earlier run with another tokenizer.
      fs::remove(dir / name, failed);
    }
  }
  return out;
}

void CheckSameConfig(const fs::path& dir, const fs::path& config_json) {
  const Json there = ReadObject(dir / "config.json"), here = ReadObject(config_json);
  const std::set<std::string> free = {"torch_dtype",  "dtype",        "transformers_version",
                                      "bos_token_id", "eos_token_id", "pad_token_id"};
  std::set<std::string> keys;
  const auto collect = [&](const Json& one, const Json& other) {
    for (const auto& [key, value] : one.items()) {
      if (!free.contains(key) && (!other.contains(key) || other[key] != value)) keys.insert(key);
    }
  };
  collect(there, here);
  collect(here, there);
  if (keys.empty()) return;
  throw Error(ErrorKind::kInvalid,
              fmt::format("{}: its config.json differs from that of --model (they differ in {})",
                          dir.string(), Joined(keys, ", ")),
              "name another --output, or start from its weights with --init-from");
}

void CheckSameLora(const fs::path& dir, const LoraOptions& lora) {
  const Json there = fs::exists(dir / kLoraFile) ? ReadObject(dir / kLoraFile) : Json::object();
  const Json here = lora.rank > 0 ? DescriptionOf(lora, {}) : Json::object();
  for (const auto& [key, flag] :
       {std::pair{"r", "--lora-rank"}, std::pair{"lora_alpha", "--lora-alpha"},
        std::pair{"target_modules", "--lora-targets"}}) {
    const std::string was = there.contains(key) ? there[key].dump() : "none";
    const std::string is = here.contains(key) ? here[key].dump() : "none";
    if (was == is) continue;
    throw Error(ErrorKind::kInvalid,
                fmt::format("{}: the adapters of {} have {}, those of this run {}", flag,
                            dir.string(), was, is),
                "name another --output, or start from its weights with --init-from");
  }
}

}  // namespace switchyard::train
