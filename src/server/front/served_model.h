// The parts of a checkpoint and of the flags from which a front is made.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "engine/rank_engine.h"
#include "engine/request.h"
#include "model/config.h"
#include "server/args/args.h"
#include "server/front/front.h"
#include "server/front/grammars.h"
#include "text/chat/chat_template.h"
#include "text/output/output_formats.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard {

// The parts of the model that the front needs: name, tokenizer, chat template, sampling defaults.

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

// Parts of the front that a server and the engine within a process make from flags.

// `queued_per_running`: without --max-queued-requests, the number of requests that may wait for
// each one that may run; 0: no limit.
Front::Limits FrontLimits(const ServerArgs& args, const EnginePlan& plan,
                          int64_t queued_per_running);

// Null with --grammar-backend none. Borrows the tokenizer of `model`.
std::unique_ptr<Grammars> MakeGrammars(const ServerArgs& args, const ServedModel& model);

}  // namespace switchyard
