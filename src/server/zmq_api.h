// The functions of libzmq that we call, found in the system's libzmq.so.5 when events of the KV
// cache are switched on (kv_event_publisher.h). The interface of that library is stable since 2012.
#pragma once

#include <zmq.h>

#include "core/base.h"

namespace moxie {

struct ZmqApi {
  decltype(&::zmq_ctx_new) ctx_new = nullptr;
  decltype(&::zmq_ctx_term) ctx_term = nullptr;
  decltype(&::zmq_socket) socket = nullptr;
  decltype(&::zmq_close) close = nullptr;
  decltype(&::zmq_setsockopt) setsockopt = nullptr;
  decltype(&::zmq_getsockopt) getsockopt = nullptr;
  decltype(&::zmq_bind) bind = nullptr;
  decltype(&::zmq_connect) connect = nullptr;
  decltype(&::zmq_poll) poll = nullptr;
  decltype(&::zmq_msg_init) msg_init = nullptr;
  decltype(&::zmq_msg_init_data) msg_init_data = nullptr;
  decltype(&::zmq_msg_close) msg_close = nullptr;
  decltype(&::zmq_msg_data) msg_data = nullptr;
  decltype(&::zmq_msg_size) msg_size = nullptr;
  decltype(&::zmq_msg_more) msg_more = nullptr;
  decltype(&::zmq_msg_recv) msg_recv = nullptr;
  decltype(&::zmq_msg_send) msg_send = nullptr;
  decltype(&::zmq_send) send = nullptr;
  decltype(&::zmq_errno) last_errno = nullptr;
  decltype(&::zmq_strerror) strerror = nullptr;
};

/// The functions. The library stays open.
Result<ZmqApi> find_zmq();

}  // namespace moxie
