#include "chat/local_server.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "chat/screen.h"
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

}  // namespace

LocalServer::LocalServer(const Options& options) : directory_(MakeDirectory()) {
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
  const FileDescriptor log(open(log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (log.get() < 0) throw Resource("{}: {}", log_.string(), std::strerror(errno));
  const FileDescriptor null_input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  int ends[2];
  if (null_input.get() < 0 || pipe2(ends, O_CLOEXEC) != 0)
    throw Resource("the server cannot be started: {}", std::strerror(errno));
  output_ = FileDescriptor(ends[0]);
  const FileDescriptor write_end(ends[1]);

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
  dup2(write_end.get(), STDOUT_FILENO);
  dup2(log.get(), STDERR_FILENO);
  if (options.api_key.empty())
    unsetenv("SWITCHYARD_API_KEY");
  else
    setenv("SWITCHYARD_API_KEY", options.api_key.c_str(), 1);
  execv("/proc/self/exe", arguments.data());
  _exit(127);
}

LocalServer::~LocalServer() {
  // The first signal drains the server, and the second one aborts what still runs.
  for (const int number : {SIGTERM, SIGTERM, SIGKILL}) {
    if (pid_ < 0) break;
    kill(pid_, number);
    const auto deadline = std::chrono::steady_clock::now() + 10s;
    while (!Ended(WNOHANG) && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(10ms);
  }
  std::error_code error;
  std::filesystem::remove_all(directory_, error);
}

ServerUrl LocalServer::url() const { return {.unix_socket = (directory_ / "socket").string()}; }

bool LocalServer::Ended(int options) {
  if (pid_ >= 0 && waitpid(pid_, &status_, options) == pid_) pid_ = -1;
  return pid_ < 0;
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
  while (!Ended(WNOHANG)) {
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

void LocalServer::WaitReady(Signals& signals,
                            const std::function<void(const std::string&)>& progress) {
  std::string printed;
  while (printed.find("is ready at") == std::string::npos) {
    if (!signals.Wait(output_.get(), POLLIN, 200ms)) {
      progress(LastLine());
      continue;
    }
    char bytes[4096];
    const ssize_t count = read(output_.get(), bytes, sizeof bytes);
    if (count > 0) printed.append(bytes, count);
    if (count != 0) continue;
    // The server has closed its output, so it ends now.
    Ended(0);
    CheckAlive();
  }
}

}  // namespace switchyard::chat
