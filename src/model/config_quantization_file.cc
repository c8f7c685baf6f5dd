// Reads the value of --quantization-config: a file, or JSON text.
#include <fstream>
#include <iterator>

#include "core/error.h"
#include "model/packed_format.h"

namespace switchyard {
namespace {

std::string TextOf(const std::string& location) {
  if (location.find('{') != std::string::npos) return location;
  std::ifstream file(location, std::ios::binary);
  if (!file) throw Invalid("--quantization-config {}: cannot read the file", location);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::vector<SchemeRule> ReadQuantizationRules(const std::string& location) {
  return ReadSchemeRules(ConfigReader(TextOf(location), "--quantization-config"), kMemoryGroupUnit);
}

}  // namespace switchyard
