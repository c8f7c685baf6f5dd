#include "chat/local_server.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "chat/screen.h"
#include "comm/net/file_descriptor.h"
#include "core/error.h"

namespace switchyard::chat {
namespace {

using namespace std::chrono_literals;

// The directory of the socket. A socket's path has at most 107 characters, so $TMPDIR, which may
// be long, is not used.
std::filesystem::path MakeDirectory() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  std::vector<std::string> parents = {"/tmp"};
  if (runtime != nullptr && *runtime == '/' && std::strlen(runtime) < 64)
    parents.insert(parents.begin(), runtime);
  for (const std::string& parent : parents) {
    std::string name = parent + "/switchyard-chat-XXXXXX";
    if (mkdtemp(name.data()) != nullptr) return name;
  }
  throw Resource("no directory for a socket can be made in {}: {}", parents.back(),
                 std::strerror(errno));
}

FileDescriptor Create(const std::filesystem::path& path) {
  FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (file.get() < 0) throw Resource("{}: {}", path.string(), std::strerror(errno));
  return file;
}

}  // namespace

LocalServer::LocalServer(const Options& options, Signals& signals)
    : signals_(signals), directory_(MakeDirectory()), output_(directory_ / "output") {
  log_ = options.log.empty() ? directory_ / "log" : options.log;
  try {
    Spawn(options);
  } catch (...) {
    std::error_code error;
    std::filesystem::remove_all(directory_, error);
    throw;
  }
}

void LocalServer::Spawn(const Options& options) {
  const FileDescriptor log = Create(log_), output = Create(output_);
  const FileDescriptor null_input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (null_input.get() < 0)
    throw Resource("the server cannot be started: {}", std::strerror(errno));

  std::vector<std::string> words = {"switchyard", "serve"};
  words.insert(words.end(), options.flags.begin(), options.flags.end());
  words.insert(words.end(), {"--uds", url().unix_socket});
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) throw Resource("the server cannot be started: {}", std::strerror(errno));
  if (pid_ > 0) return;
  // In the child. This process had one thread, so all functions may be called.
  setpgid(0, 0);  // Ctrl-C is for the chat only
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  Signals::Restore();
  dup2(null_input.get(), STDIN_FILENO);
  dup2(output.get(), STDOUT_FILENO);
  dup2(log.get(), STDERR_FILENO);
  if (options.api_key.empty())
    unsetenv("SWITCHYARD_API_KEY");
  else
    setenv("SWITCHYARD_API_KEY", options.api_key.c_str(), 1);
  execv("/proc/self/exe", arguments.data());
  _exit(127);
}

LocalServer::~LocalServer() {
  // The first signal drains the server, and the second one aborts what still runs. A signal to the
  // chat shortens a wait, so further Ctrl-Cs hasten the end. Those before the end began are not
  // counted: one key press can send several signals.
  signals_.Drain();
  constexpr std::chrono::milliseconds kTime = 10s, kHastened = 200ms;
  struct Step {
    int signal;
    std::chrono::milliseconds after_signal;
  };
  for (const Step& step : {Step{SIGTERM, kHastened}, Step{SIGTERM, kHastened},
                           Step{SIGKILL, kTime}}) {  // the kernel needs time to end it
    if (pid_ < 0) break;
    kill(pid_, step.signal);
    AwaitEnd(kTime, step.after_signal);
  }
  std::error_code error;
  std::filesystem::remove_all(directory_, error);
}

ServerUrl LocalServer::url() const { return {.unix_socket = (directory_ / "socket").string()}; }

bool LocalServer::Ended() {
  if (pid_ >= 0 && waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = -1;
  return pid_ < 0;
}

void LocalServer::AwaitEnd(std::chrono::milliseconds timeout,
                           std::chrono::milliseconds after_signal) {
  using Clock = std::chrono::steady_clock;
  auto deadline = Clock::now() + timeout;
  while (!Ended() && Clock::now() < deadline) {
    if (signals_.Drain()) deadline = std::min(deadline, Clock::now() + after_signal);
    std::this_thread::sleep_for(10ms);
  }
}

bool LocalServer::IsReady() const {
  std::ifstream file(output_);
  for (std::string line; std::getline(file, line);)
    if (line.find("is ready at") != std::string::npos) return true;
  return false;
}

std::string LocalServer::LastLine() const {
  std::ifstream file(log_);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    // Progress is redrawn in place on terminals.
    if (const size_t redrawn = line.rfind('\r'); redrawn != std::string::npos)
      line.erase(0, redrawn + 1);
    if (!line.empty()) last = std::move(line);
  }
  return last;
}

void LocalServer::CheckAlive() {
  const auto deadline = std::chrono::steady_clock::now() + 500ms;
  while (!Ended()) {
    if (std::chrono::steady_clock::now() >= deadline) return;
    std::this_thread::sleep_for(10ms);
  }
  // If a server fails, its last line is the error, which begins with "switchyard: ". Any other last
  // line does not state a reason.
  std::string why = WithoutControls(LastLine());
  constexpr std::string_view kName = "switchyard: ";
  why.erase(0, why.starts_with(kName) ? kName.size() : why.size());
  if (WIFSIGNALED(status_))
    why = fmt::format("signal {} ended the server{}{}", WTERMSIG(status_), why.empty() ? "" : ": ",
                      why);
  else if (why.empty())
    why = fmt::format("the server ended with code {}", WEXITSTATUS(status_));
  const bool invalid = WIFEXITED(status_) && WEXITSTATUS(status_) == 2;
  throw Error(invalid ? ErrorKind::kInvalid : ErrorKind::kPeer, why);
}

void LocalServer::WaitReady(const std::function<void(const std::string&)>& progress) {
  while (!IsReady()) {
    if (Ended()) CheckAlive();  // throws
    signals_.Wait(-1, 0, 100ms);
    progress(LastLine());
  }
}

}  // namespace switchyard::chat
