// The answers of `switchyard plan` as text, JSON and a picture.
#pragma once

#include <string>
#include <vector>

#include "plan/search.h"

namespace switchyard::plan {

// The assumptions, a table of the best `rows` layouts, and the parts of the first one: memory,
// steps, the reason why it is first, and its command line.
std::string Report(const Question& question, const std::vector<Evaluation>& ranked, int rows);
std::string ReportJson(const Question& question, const std::vector<Evaluation>& ranked);
// The model, the cluster, the costs and the load. `ranks`: what is assumed about the ranks.
std::string Assumptions(const Question& question, const std::string& ranks);
// Memory of a rank by kind, and what the cache holds, in indented lines that each follow "\n".
std::string MemoryDetails(const Question& question, const Evaluation& evaluation);
// Memory and steps of one layout.
std::string Details(const Question& question, const Evaluation& evaluation);
// " attention 1.20 experts 3.40 ..." in ms.
std::string StepText(const StepTime& time);
// "switchyard serve --model-path ... ", for one engine; with several nodes, for node 0.
std::string ServeCommand(const Question& question, const Evaluation& evaluation);
// The questions of the decision tree, with this layout's numbers and its path.
std::string Explain(const Question& question, const Layout& layout);
// Throughput per device over the time between tokens, for every accepted layout; the layouts on the
// Pareto front are named. An SVG.
std::string Picture(const Question& question, const std::vector<Evaluation>& ranked);

}  // namespace switchyard::plan
