#include "eplb/init_location.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "eplb/array_file.h"
#include "eplb/planner.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr const char* kMap = "physical_to_logical_map";
constexpr const char* kCounts = "logical_count";
constexpr const char* kWanted =
    "want JSON, safetensors or .pt with physical_to_logical_map or logical_count";

// Converts a tensor to the form that the map has in JSON: a list of rows.
json RowsOfTensor(const ArrayFile& file) {
  const IntArray map = file.Get(kMap);
  if (map.shape.size() != 2 || map.values.empty())
    throw Invalid("{}: {} has {} dimensions; want [layers, slots]", file.name(), kMap,
                  map.shape.size());
  json rows = json::array();
  for (auto at = map.values.begin(); at != map.values.end(); at += map.shape[1]) {
    const std::vector<int32_t> row(at, at + map.shape[1]);
    const bool none = std::ranges::all_of(row, [](int32_t id) { return id == -1; });
    rows.push_back(none ? json(nullptr) : json(row));
  }
  return rows;
}

// Returns the rows of the map. If the map is a tensor, its rows are stored in `converted`. Rows of
// JSON are not copied, because copying is recursive and deeply nested lists would overflow the
// stack.
const json& ReadMap(const ArrayFile& file, json* converted) {
  if (file.json() == nullptr) return *converted = RowsOfTensor(file);
  const json& rows = file.json()->at(kMap);
  if (!rows.is_array() || rows.empty())
    throw Invalid("{}: {} is not a list of rows", file.name(), kMap);
  return rows;
}

// Converts one row of the map. The message of Error kInvalid says what is wrong with the row,
// without naming file and layer.
ExpertPlacement PlacementOf(const json& row, int num_logical, int redundant) {
  const auto is_id = [&](const json& id) {
    return id.is_number_integer() && id >= 0 && id < num_logical;
  };
  if (row.is_null()) return ExpertPlacement::Trivial(num_logical, redundant);
  if (!row.is_array()) throw Invalid("not a list of expert ids");
  const auto other = std::ranges::find_if_not(row, is_id);
  if (other != row.end())
    throw Invalid("{} is not an expert id; the model has 0 to {}", DescribeValue(*other),
                  num_logical - 1);
  const size_t want = static_cast<size_t>(num_logical) + redundant;
  if (row.size() != want)
    throw Invalid("{} physical experts; the model and --ep-num-redundant-experts require {}",
                  row.size(), want);
  return ExpertPlacement(num_logical, row.get<std::vector<int32_t>>());
}

std::vector<ExpertPlacement> FromMap(const ArrayFile& file, const InitLocation& init) {
  json converted;
  const json& rows = ReadMap(file, &converted);
  const auto count = std::ssize(rows);
  if (count != 1 && count != init.num_layers)
    throw Invalid("{}: {} layers, but the model has {}", file.name(), count, init.num_layers);
  std::vector<ExpertPlacement> placements;
  for (int64_t layer = 0; layer < init.num_layers; ++layer) {
    try {
      placements.push_back(
          PlacementOf(rows[count == 1 ? 0 : layer], init.num_logical, init.redundant));
    } catch (const Error& error) {
      throw Invalid("{}: layer {}: {}", file.name(), layer, error.what());
    }
  }
  return placements;
}

std::vector<ExpertPlacement> FromCounts(const ArrayFile& file, const InitLocation& init) {
  const LoadHistory loads = ReadLoads(file, kCounts);
  if (loads.layers != init.num_layers || loads.experts != init.num_logical)
    throw Invalid("{}: counts of {} layers of {} experts, but the model has {} of {}", file.name(),
                  loads.layers, loads.experts, init.num_layers, init.num_logical);
  const Placement plan = PlanPlacement(ParseEplbAlgorithm(init.algorithm),
                                       {.history = &loads,
                                        .topology = init.topology,
                                        .physical = init.num_logical + init.redundant});
  std::vector<ExpertPlacement> placements;
  for (int layer = 0; layer < plan.layers; ++layer)
    placements.push_back(plan.ToExpertPlacement(layer));
  return placements;
}

// Opens the value of the flag. It is JSON text if it begins like a JSON object, else a file name.
void OpenLocation(const std::string& location, std::optional<ArrayFile>* file) {
  const size_t begin = location.find_first_not_of(" \t\r\n");
  if (begin != std::string::npos && location[begin] == '{') {
    file->emplace(location, "(JSON text)");
  } else {
    file->emplace(std::filesystem::path(location));
  }
}

}  // namespace

std::vector<ExpertPlacement> LoadPlacements(const InitLocation& init) {
  if (init.redundant < 0)
    throw Invalid("--ep-num-redundant-experts {}: want at least 0", init.redundant);
  if (init.location == "trivial")
    return {static_cast<size_t>(init.num_layers),
            ExpertPlacement::Trivial(init.num_logical, init.redundant)};
  std::optional<ArrayFile> file;
  try {
    OpenLocation(init.location, &file);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kNotFound)
      throw NotFound("--init-expert-location {}; want a file, JSON text or \"trivial\"",
                     error.what());
    throw Invalid("--init-expert-location {}; {}", error.what(), kWanted);
  }
  try {
    if (file->Has(kMap)) return FromMap(*file, init);
    if (file->Has(kCounts)) return FromCounts(*file, init);
  } catch (const Error& error) {
    throw Invalid("--init-expert-location {}", error.what());
  }
  throw Invalid("--init-expert-location {}: {}; {}", file->name(), file->NamesOfArrays(), kWanted);
}

void CheckSamePlacements(const std::vector<ExpertPlacement>& placements,
                         const std::string& location, Communicator& world) {
  Fnv1a hash;
  for (const ExpertPlacement& placement : placements) {
    hash.AddUnit(static_cast<uint64_t>(placement.num_physical()));
    for (const int32_t expert : placement.physical_to_logical())
      hash.AddUnit(static_cast<uint64_t>(expert));
  }
  const uint64_t mine = hash.value();
  std::vector<uint64_t> all(world.size());
  world.AllGather(&mine, all.data(), sizeof mine);
  const auto other = std::ranges::find_if(all, [&](uint64_t hash) { return hash != all[0]; });
  if (other != all.end())
    throw Invalid(
        "--init-expert-location {}: rank {} has another placement than rank 0; want the same "
        "file on every host",
        location, other - all.begin());
}

}  // namespace switchyard
