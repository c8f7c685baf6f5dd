// The main function of a fuzz target for compilers without libFuzzer. Runs the target on a corpus,
// then for some seconds on random mutations of the corpus.
//
//   TARGET [-seconds=N] [-seed=N] [-crash=FILE] CORPUS_DIRECTORY_OR_FILE...
//
// Mutations are not guided by coverage, so libFuzzer (preset `fuzz`) finds more defects. This
// driver prevents regressions and reuses the objects of a sanitizer build. If an input crashes the
// process, or takes more than kInputSeconds, it is written to FILE.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
#ifdef __SANITIZE_ADDRESS__
extern "C" void __sanitizer_set_death_callback(void (*callback)());
#endif

namespace {

namespace fs = std::filesystem;

constexpr unsigned kInputSeconds = 30;
constexpr std::string_view kTooSlow = "fuzz: an input takes more than 30 s\n";
constexpr size_t kMaxInput = 64 << 10;

// Read by signal handlers.
const std::string* current_input = nullptr;
const char* crash_file = "crash";

// The functions below run in signal handlers, so they call only async-signal-safe functions.
void WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void WriteCurrentInput() {
  if (current_input == nullptr) return;
  const int fd = open(crash_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd >= 0) {
    WriteAll(fd, *current_input);
    close(fd);
    WriteAll(STDERR_FILENO, "fuzz: the input was written to ");
    WriteAll(STDERR_FILENO, crash_file);
    WriteAll(STDERR_FILENO, "\n");
  }
  current_input = nullptr;
}

void OnSignal(int signal) {
  if (signal == SIGALRM) WriteAll(STDERR_FILENO, kTooSlow);
  WriteCurrentInput();
  _exit(1);
}

void Run(const std::string& input) {
  current_input = &input;
  alarm(kInputSeconds);
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  alarm(0);
  current_input = nullptr;
}

constexpr std::string_view kPieces[] = {"\"",
                                        "\\",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        ",",
                                        ":",
                                        "null",
                                        "true",
                                        "-1",
                                        "0",
                                        "1e999",
                                        "18446744073709551615",
                                        "9223372036854775807",
                                        "-9223372036854775808",
                                        "4294967296",
                                        "{%",
                                        "%}",
                                        "{{",
                                        "}}",
                                        "\xff",
                                        "\xe4\xb8",
                                        "\xf0\x9f\x98\x80",
                                        "\\u0000",
                                        "\\ud800",
                                        "\r\n",
                                        " "};

// Mutates inputs of a corpus, which must outlive it.
class Mutator {
 public:
  Mutator(const std::vector<std::string>& corpus, uint64_t seed) : corpus_(corpus), random_(seed) {}

  std::string Next() {
    std::string input = corpus_[Below(corpus_.size())];
    for (size_t changes = 1 + Below(6); changes > 0; --changes) Change(&input);
    if (input.size() > kMaxInput) input.resize(kMaxInput);
    return input;
  }

 private:
  size_t Below(size_t end) { return end == 0 ? 0 : random_() % end; }

  // `text` is not empty.
  std::string PieceOf(const std::string& text) {
    const size_t begin = Below(text.size());
    return text.substr(begin, 1 + Below(std::min<size_t>(text.size() - begin, 64)));
  }

  void Change(std::string* s) {
    const size_t at = Below(s->size() + 1);
    const size_t length = 1 + Below(std::min<size_t>(s->size() - at + 1, 64));
    switch (Below(9)) {
      case 0:
        if (at < s->size()) (*s)[at] = static_cast<char>((*s)[at] ^ (1 << Below(8)));
        break;
      case 1:
        if (at < s->size()) (*s)[at] = static_cast<char>(random_());
        break;
      case 2:
        s->erase(at, length);
        break;
      case 3:
        s->insert(at, 1 + Below(4), static_cast<char>(random_()));
        break;
      case 4:
        s->insert(at, std::string(kPieces[Below(std::size(kPieces))]));
        break;
      case 5:  // repeats a piece, sometimes 200 times
        if (!s->empty()) {
          const std::string piece = PieceOf(*s);
          for (size_t times = Below(8) == 0 ? 200 : 1; times > 0; --times) s->insert(at, piece);
        }
        break;
      case 6: {  // inserts a piece of another input
        const std::string& other = corpus_[Below(corpus_.size())];
        if (!other.empty()) s->replace(at, Below(length + 1), PieceOf(other));
        break;
      }
      case 7: {  // continues with the end of another input
        const std::string& other = corpus_[Below(corpus_.size())];
        s->resize(at);
        *s += other.substr(Below(other.size() + 1));
        break;
      }
      default: {  // replaces a number
        const size_t digit = s->find_first_of("0123456789", at);
        if (digit == std::string::npos) break;
        const size_t end = std::min(s->find_first_not_of("0123456789", digit), s->size());
        s->replace(digit, end - digit, std::to_string(random_() >> Below(64)));
        break;
      }
    }
  }

  const std::vector<std::string>& corpus_;
  std::mt19937_64 random_;
};

std::vector<std::string> ReadCorpus(const std::vector<fs::path>& paths) {
  std::vector<fs::path> files;
  for (const fs::path& path : paths) {
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    for (const auto& entry : fs::directory_iterator(path)) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  std::vector<std::string> corpus;
  for (const fs::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return corpus;
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 0;
  uint64_t seed = 1;
  std::vector<fs::path> paths;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.starts_with("-seconds=")) {
      seconds = std::strtod(argv[i] + std::strlen("-seconds="), nullptr);
    } else if (word.starts_with("-seed=")) {
      seed = std::strtoull(argv[i] + std::strlen("-seed="), nullptr, 10);
    } else if (word.starts_with("-crash=")) {
      crash_file = argv[i] + std::strlen("-crash=");
    } else {
      paths.emplace_back(word);
    }
  }
  for (const int signal : {SIGABRT, SIGALRM}) ::signal(signal, OnSignal);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_set_death_callback(WriteCurrentInput);
#else
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) ::signal(signal, OnSignal);
#endif

  const std::vector<std::string> corpus = ReadCorpus(paths);
  if (corpus.empty()) {
    std::fprintf(stderr, "fuzz: no corpus\n");
    return 2;
  }
  for (const std::string& input : corpus) Run(input);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  Mutator mutator(corpus, seed);
  size_t runs = 0;
  while (std::chrono::steady_clock::now() < end) {
    const std::string input = mutator.Next();
    Run(input);
    ++runs;
  }
  std::printf("fuzz: %zu inputs of the corpus and %zu mutations pass\n", corpus.size(), runs);
  return 0;
}
