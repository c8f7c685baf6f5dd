#include "apps/command_table.h"

#include <algorithm>
#include <string_view>

#include "core/format.h"

namespace switchyard {
namespace {

struct HelpLine {
  std::string_view name;       // alternatives of the second word are separated by |
  std::string_view arguments;  // the most important ones
  std::string_view summary;
};

constexpr HelpLine kLines[] = {
    {"serve", "--model-path DIR [flags]", "serve a checkpoint over HTTP"},
    {"chat", "[URL | --model-path DIR]", "chat with a model in the terminal"},
    {"route", "--worker-urls URL…", "one address for several servers of a model"},
    {"generate", "--model-path DIR --prompt T", "generate text, printing as it comes"},
    {"bench one-batch", "--model-path DIR", "time prefill and decode"},
    {"bench serve", "[--port P] [flags]", "load a running server, print latencies and throughput"},
    {"bench kernels|moe-layer|exchange", "", "time parts of the program, with roofline fractions"},
    {"bench roofline|calibrate", "", "peak rates of this machine, and its cost table for plan"},
    {"plan", "--model-path CONFIG --gpus 8xh200", "rank the layouts of a model on a cluster"},
    {"simulate", "--model-path CONFIG --rate R", "play requests over a layout, step by step"},
    {"eplb plan|simulate", "FILE --ranks R", "placement of experts from recorded routing"},
    {"quantize", "DIR OUT --format int4", "write a quantized checkpoint"},
    {"train", "--config train.yaml [flags]", "train a model with expert parallelism"},
    {"train-score", "--model DIR --data FILE", "loss, accuracy and balance on held-out text"},
    {"train-picture", "LOG… --output X.svg", "curves of training logs"},
    {"train-tokenizer", "TEXT… --output DIR", "learn a tokenizer from text"},
    {"token-map", "TEXT… --model-path DIR", "tokens for a small head of a draft model"},
    {"backends", "[--model-path DIR] [flags]", "compatible backends, and the default choice"},
    {"backends", "--markdown", "feature support on CPUs, GPUs and several hosts"},
    {"backends", "--models", "families of models, and what works with each"},
    {"completion", "bash|zsh|fish", "print the completion script of a shell"},
    {"version", "", "print the version"},
};

// Number of characters of UTF-8.
size_t Width(std::string_view text) {
  return std::ranges::count_if(text, [](unsigned char c) { return (c & 0xc0) != 0x80; });
}

}  // namespace

std::string MainHelp() {
  constexpr size_t kColumn = 38;  // of the summaries, after "  switchyard "
  std::string help = "Switchyard: Mixture-of-Experts language models with expert parallelism\n\n";
  for (const HelpLine& line : kLines) {
    std::string usage(line.name);
    if (!line.arguments.empty()) usage.append(" ").append(line.arguments);
    usage.append(kColumn - std::min(Width(usage), kColumn - 1), ' ');
    help += fmt::format("  switchyard {}{}\n", usage, line.summary);
  }
  return help + "\nEach sub-command has --help.\n";
}

std::vector<CommandSummary> CommandSummaries() {
  std::vector<CommandSummary> all;
  const auto add = [&all](std::string name, std::string_view summary) {
    if (std::ranges::none_of(all, [&](const CommandSummary& c) { return c.name == name; }))
      all.push_back({std::move(name), std::string(summary)});
  };
  for (const HelpLine& line : kLines) {
    const size_t space = line.name.find(' ');
    if (space == std::string_view::npos) {
      add(std::string(line.name), line.summary);
      continue;
    }
    const std::string first(line.name.substr(0, space));
    std::string_view rest = line.name.substr(space + 1);
    while (!rest.empty()) {
      const size_t bar = std::min(rest.find('|'), rest.size());
      add(fmt::format("{} {}", first, rest.substr(0, bar)), line.summary);
      rest.remove_prefix(std::min(bar + 1, rest.size()));
    }
  }
  return all;
}

}  // namespace switchyard
