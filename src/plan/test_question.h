// Questions about published models, for tests.
#pragma once

#include <fstream>
#include <sstream>
#include <string>

#include "core/error.h"
#include "model/config.h"
#include "plan/search.h"

namespace switchyard::plan {

// The message of the error that `f` throws, of any kind; empty without an error.
template <typename F>
std::string RefusalOf(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline ModelConfig PublishedModel(const std::string& name,
                                  const QuantizationFlags& quantization = {}) {
  std::ifstream in(std::string(SWITCHYARD_TEST_DATA) + "/plan/" + name + ".json");
  std::ostringstream text;
  text << in.rdbuf();
  return ParseModelConfig(text.str(), {}, quantization);
}

inline Question GpuQuestion(const std::string& model, const std::string& card, int per_node,
                            int nodes = 1) {
  Question q{.model = PublishedModel(model), .table = ShippedTable(card)};
  q.config.model_path = model;
  q.cluster = {.card = card,
               .cuda = true,
               .per_node = per_node,
               .nodes = nodes,
               .nics = nodes > 1 ? 8 : 0,
               .nic_gbit = nodes > 1 ? 400.0 : 0.0,
               .memory = q.table.memory_bytes};
  return q;
}

inline Question CpuQuestion(const std::string& model, int cpus, double gib) {
  Question q{.model = PublishedModel(model), .table = CpuDefaults(cpus)};
  q.config.model_path = model;
  q.cluster = {.card = "host",
               .per_node = cpus,
               .cpus = cpus,
               .memory = gib * static_cast<double>(int64_t{1} << 30)};
  return q;
}

}  // namespace switchyard::plan
