// What the front knows of the model: its text side.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "engine/request.h"
#include "model/config.h"
#include "server/args/args.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard {

// Immutable once loaded; shared by all threads.
struct ServedModel {
  std::string name;  // in /v1/models and in answers
  std::filesystem::path path;
  ModelConfig config;
  std::unique_ptr<Tokenizer> tokenizer;
  ChatTemplate chat_template;
  // What generation_config.json asks for where a request says nothing (temperature, top_p, top_k,
  // …).
  SamplingParams sampling_defaults;
};

// Reads tokenizer, template and defaults. Error names the file; a vocabulary that has ids beyond
// config.json's vocab_size is refused.
ServedModel LoadServedModel(const ServerArgs& args, const ModelConfig& config);

}  // namespace switchyard
