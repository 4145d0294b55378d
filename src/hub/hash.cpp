#include "hub/hash.h"

#include <openssl/evp.h>

#include <array>

#include "core/base.h"

namespace moxie::hub {
namespace {

EVP_MD_CTX* as_context(const auto& context) { return static_cast<EVP_MD_CTX*>(context.get()); }

}  // namespace

void Hasher::Free::operator()(void* context) const {
  EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context));
}

Hasher::Hasher(HashKind kind, uint64_t size) : context_(EVP_MD_CTX_new()) {
  CHECK(context_ != nullptr);
  const EVP_MD* method = kind == HashKind::kSha256 ? EVP_sha256() : EVP_sha1();
  CHECK(EVP_DigestInit_ex(as_context(context_), method, nullptr) == 1, "the hash does not start");
  if (kind == HashKind::kGitBlob) {
    const std::string head = "blob " + std::to_string(size);
    add(std::as_bytes(std::span(head.c_str(), head.size() + 1)));  // with its zero
  }
}

void Hasher::add(std::span<const std::byte> bytes) {
  CHECK(EVP_DigestUpdate(as_context(context_), bytes.data(), bytes.size()) == 1);
}

std::string Hasher::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest = {};
  unsigned size = 0;
  CHECK(EVP_DigestFinal_ex(as_context(context_), digest.data(), &size) == 1);
  std::string text;
  for (unsigned i = 0; i < size; ++i) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += {kDigits[digest[i] >> 4], kDigits[digest[i] & 15]};
  }
  return text;
}

}  // namespace moxie::hub
