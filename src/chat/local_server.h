// A server for one chat.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "chat/http_client.h"
#include "chat/signals.h"

namespace switchyard::chat {

// `switchyard serve` as a child process, on a Unix socket in a directory that only this user can
// open. The destructor stops the server and removes the directory; a signal to this process hastens
// the stop. If this process ends in another way, the kernel sends SIGTERM to the server. Use on the
// main thread, before other threads exist.
class LocalServer {
 public:
  struct Options {
    std::vector<std::string> flags;  // of serve
    std::string api_key;             // that the server requires; "": none
    std::filesystem::path log;       // file for the server's messages; "": one in the directory
  };

  // Starts the program of this process. Throws Error kResource. `signals` must outlive this object.
  LocalServer(const Options& options, Signals& signals);
  ~LocalServer();
  LocalServer(const LocalServer&) = delete;
  LocalServer& operator=(const LocalServer&) = delete;

  // Waits until the server has loaded the model. `progress` receives the last line of its log, a
  // few times a second. Throws Interrupted, and the error of CheckAlive.
  void WaitReady(const std::function<void(const std::string&)>& progress);

  // Throws Error kInvalid or kPeer if the server has ended, with its error or signal. For use after
  // a failed request: waits 0.5 s for the end, as a connection closes before its process ends.
  void CheckAlive();

  ServerUrl url() const;

 private:
  void Spawn(const Options& options);
  bool Ended();  // reaps the process
  // Waits until the process has ended: for at most `timeout`, and after a signal to this process
  // for at most `after_signal`.
  void AwaitEnd(std::chrono::milliseconds timeout, std::chrono::milliseconds after_signal);
  bool IsReady() const;
  std::string LastLine() const;

  Signals& signals_;
  // The server's standard output is a file: a pipe would block a server that printed more than the
  // pipe holds.
  std::filesystem::path directory_, log_, output_;
  pid_t pid_ = -1;  // -1: ended
  int status_ = 0;  // of waitpid
};

}  // namespace switchyard::chat
