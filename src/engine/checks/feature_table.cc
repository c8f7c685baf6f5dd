// The table of `switchyard backends --markdown`.
#include <algorithm>
#include <array>
#include <iterator>

#include "core/format.h"
#include "engine/checks/features.h"

namespace switchyard {
namespace {

constexpr const char* kHeader =
    "| | CPUs | CPUs of several hosts | one GPU | several GPUs | GPUs of several hosts |\n"
    "|---|---|---|---|---|---|\n";

using Cells = std::array<std::string, 5>;

Cells CellsOf(const Feature& f) {
  const auto cell = [](bool works, const std::string& condition) -> std::string {
    if (!works) return "no";
    return condition.empty() ? "yes" : condition;
  };
  const Reach& reach = f.reach;
  return {cell(reach.cpus, f.on_cpus), cell(reach.cpus && reach.hosts, f.on_cpus),
          cell(reach.gpus && reach.one_gpu, f.on_gpus), cell(reach.gpus, f.on_gpus),
          cell(reach.gpus && reach.hosts && reach.gpu_hosts, f.on_gpus)};
}

struct Row {
  std::string section, flag;
  std::vector<std::string> values;
  Cells cells;
};

std::vector<Row> RowsOf(const std::vector<Feature>& features) {
  std::vector<Row> rows;
  for (const Feature& f : features) {
    const Cells cells = CellsOf(f);
    const auto same = std::ranges::find_if(rows, [&](const Row& row) {
      return row.section == f.section && row.flag == f.flag && row.cells == cells;
    });
    if (same == rows.end()) {
      rows.push_back({f.section, f.flag, {}, cells});
      if (!f.value.empty()) rows.back().values.push_back(f.value);
    } else {
      same->values.push_back(f.value);
    }
  }
  return rows;
}

// Formats a flag and its values as code, and other words as plain text.
std::string Label(const Row& row) {
  const char* mark = row.flag.starts_with("--") ? "`" : "";
  std::vector<std::string> values;
  for (const std::string& value : row.values)
    values.push_back(fmt::format("{}{}{}", mark, value, mark));
  return fmt::format("{}{}{}{}{}", mark, row.flag, mark, values.empty() ? "" : " ",
                     Joined(values, ", "));
}

}  // namespace

std::string FeatureTable(const std::vector<Feature>& features) {
  std::string text = kHeader;
  std::string section;
  for (const Row& row : RowsOf(features)) {
    if (row.section != section) {
      section = row.section;
      fmt::format_to(std::back_inserter(text), "| **{}** | | | | | |\n", section);
    }
    fmt::format_to(std::back_inserter(text), "| {} | {} |\n", Label(row), Joined(row.cells, " | "));
  }
  return text;
}

}  // namespace switchyard
