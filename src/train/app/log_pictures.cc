#include "train/app/log_pictures.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "train/app/step_log.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;

Curve Pick(const std::vector<nlohmann::json>& lines, const std::string& key,
           const std::string& label) {
  Curve curve{.label = label, .points = {}};
  for (const nlohmann::json& line : lines) {
    const auto at = line.find(key);
    if (at == line.end() || !at->is_number()) continue;
    curve.points.emplace_back(line["step"].get<double>(), at->get<double>());
  }
  return curve;
}

}  // namespace

Curve CurveOf(const fs::path& log, const std::string& key, const std::string& label) {
  Curve curve = Pick(ReadStepLog(log), key, label);
  if (curve.points.empty())
    throw Invalid("{}: no line has a number in the key {}", log.string(), key);
  return curve;
}

void WritePicture(const fs::path& path, const std::string& svg) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << svg;
  out.close();
  if (!out) throw Resource("{}: cannot be written", path.string());
}

void WritePictures(const fs::path& output) {
  const std::vector<nlohmann::json> lines = ReadStepLog(output / "log.jsonl");
  std::vector<Curve> losses = {Pick(lines, "main", "next token")};
  for (const auto& [key, label] :
       {std::pair("mtp", "MTP, weighted"), std::pair("balance", "balance")}) {
    Curve curve = Pick(lines, key, label);
    const bool any = std::ranges::any_of(curve.points, [](const auto& p) { return p.second != 0; });
    if (any) losses.push_back(std::move(curve));
  }
  WritePicture(output / "loss.svg",
               DrawCurves(losses, {.title = "Loss", .x_label = "step", .y_label = "loss"}));
  const Curve mean = Pick(lines, "balancedness", "mean of layers");
  if (mean.points.empty()) return;
  const Curve worst = Pick(lines, "balancedness_worst", "worst layer");
  WritePicture(output / "balance.svg", DrawCurves({mean, worst}, {.title = "Balance of experts",
                                                                  .x_label = "step",
                                                                  .y_label = "balancedness",
                                                                  .low = 0.0,
                                                                  .high = 1.0}));
}

}  // namespace switchyard::train
