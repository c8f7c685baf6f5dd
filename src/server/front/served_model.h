// The parts of the model that the front needs: name, tokenizer, chat template, sampling defaults.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "engine/request.h"
#include "model/config.h"
#include "server/args/args.h"
#include "text/chat/chat_template.h"
#include "text/output/output_formats.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard {

// Immutable once loaded; shared by all threads.
struct ServedModel {
  std::string name;  // name of the model in /v1/models and in responses
  std::filesystem::path path;
  ModelConfig config;
  std::unique_ptr<Tokenizer> tokenizer;
  ChatTemplate chat_template;
  // Defaults from generation_config.json for parameters that a request omits (temperature, top_p,
  // top_k, …).
  SamplingParams sampling_defaults;
  OutputFormat output_format;  // how tool calls and reasoning in outputs are parsed
};

// Reads tokenizer, template and defaults. Errors name the file. A tokenizer with ids beyond
// config.json's vocab_size is an error. The output format comes from --tool-call-parser and
// --reasoning-parser, or from the markers in the chat template.
ServedModel LoadServedModel(const ServerArgs& args, const ModelConfig& config);

}  // namespace switchyard
