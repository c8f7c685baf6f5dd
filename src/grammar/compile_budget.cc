#include "core/error.h"
#include "core/log.h"
#include "grammar/compiler.h"

namespace switchyard {
namespace {

thread_local CompileBudget* current = nullptr;

// The reason in a message of XGrammar: "Check failed: (condition) is false: reason" → "reason".
std::string ReasonOf(const std::string& message) {
  constexpr const char* kMark = " is false: ";
  const size_t at = message.starts_with("Check failed") || message.starts_with("Internal check")
                        ? message.find(kMark)
                        : std::string::npos;
  const std::string reason = at == std::string::npos
                                 ? message
                                 : message.substr(at + std::char_traits<char>::length(kMark));
  return reason.empty() ? message : reason;
}

}  // namespace

CompileBudget::CompileBudget(std::chrono::milliseconds time, size_t mask_bytes)
    : time_(time),
      deadline_(std::chrono::steady_clock::now() + time),
      mask_bytes_(mask_bytes),
      outer_(current) {
  current = this;
}

CompileBudget::~CompileBudget() { current = outer_; }

CompileBudget* CompileBudget::Current() { return current; }

void CompileBudget::Spend(size_t bytes) {
  spent_ += bytes;
  if (spent_ > mask_bytes_)
    throw Invalid("the grammar is too large: its token masks exceed {} MiB", mask_bytes_ >> 20);
  if (std::chrono::steady_clock::now() > deadline_)
    throw Invalid("the grammar is too complex: it takes more than {} ms to compile", time_.count());
}

void CompileBudget::Warn(const std::string& message) {
  if (warning_.empty()) warning_ = message;
}

void CompileBudget::CheckWarnings() const {
  if (!warning_.empty()) throw Invalid("{}", warning_);
}

}  // namespace switchyard

// Functions that XGrammar calls. XGRAMMAR_LOG_CUSTOMIZE makes it use these log functions.
// scripts/third_party.py adds the call of SpendCompileBudget to XGrammar's source.
namespace xgrammar {

void SpendCompileBudget(std::size_t bytes);
[[noreturn]] void LogFatalImpl(const std::string& file, int line, const std::string& message);
void LogMessageImpl(const std::string& file, int line, int level, const std::string& message);

void SpendCompileBudget(std::size_t bytes) {
  if (auto* budget = switchyard::CompileBudget::Current()) budget->Spend(bytes);
}

void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw switchyard::Invalid("{}", switchyard::ReasonOf(message));
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level < kWarning) return;
  if (auto* budget = switchyard::CompileBudget::Current()) {
    budget->Warn(message);
  } else {
    LOG_WARNING("grammar: {}", message);
  }
}

}  // namespace xgrammar
