// libzmq of the system, opened when it is first needed.
#include "server/zmq_api.h"

#include <dlfcn.h>

#include <type_traits>

namespace moxie {

Result<ZmqApi> find_zmq() {
  constexpr const char* kWhere = "--kv-events-config";
  void* const library = ::dlopen("libzmq.so.5", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    return fail("libzmq, which publishes events, was not found: " +
                    std::string(why != nullptr ? why : "no reason is known"),
                kWhere,
                "install it: the package libzmq5 on Debian and Ubuntu, zeromq on Fedora; or leave "
                "the switch out");
  }
  ZmqApi api;
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr) missing = name;
  };
  find(api.ctx_new, "zmq_ctx_new");
  find(api.ctx_term, "zmq_ctx_term");
  find(api.socket, "zmq_socket");
  find(api.close, "zmq_close");
  find(api.setsockopt, "zmq_setsockopt");
  find(api.getsockopt, "zmq_getsockopt");
  find(api.bind, "zmq_bind");
  find(api.connect, "zmq_connect");
  find(api.poll, "zmq_poll");
  find(api.msg_init, "zmq_msg_init");
  find(api.msg_init_data, "zmq_msg_init_data");
  find(api.msg_close, "zmq_msg_close");
  find(api.msg_data, "zmq_msg_data");
  find(api.msg_size, "zmq_msg_size");
  find(api.msg_more, "zmq_msg_more");
  find(api.msg_recv, "zmq_msg_recv");
  find(api.msg_send, "zmq_msg_send");
  find(api.send, "zmq_send");
  find(api.last_errno, "zmq_errno");
  find(api.strerror, "zmq_strerror");
  if (!missing.empty()) {
    return fail("libzmq is too old: it lacks " + missing, kWhere, "install libzmq 4.2 or newer");
  }
  return api;
}

}  // namespace moxie
