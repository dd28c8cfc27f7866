// The interface of std::map, beyond what it shares with the other ordered containers.
#pragma once

#include <stdexcept>
#include <tuple>

#include "varve/containers/ordered_api.hpp"
#include "varve/core/errors.hpp"

namespace varve {

/// Of unique keys, each with a value. Nothing is constructed for a key that is there.
template <class Core>
class map_api : public ordered_api<Core, false> {
    using base = ordered_api<Core, false>;

public:
    using typename base::const_iterator;
    using typename base::iterator;
    using typename base::key_type;
    using typename base::value_type;
    using mapped_type = typename base::slot::mapped_type;

    using base::base;
    using base::operator=;  // from a list

    template <class... Args>
    std::pair<iterator, bool> try_emplace(const key_type& key, Args&&... args) {
        return add_pieces(this->core_.seek_likely(key), key, std::forward<Args>(args)...);
    }
    template <class... Args>
    std::pair<iterator, bool> try_emplace(key_type&& key, Args&&... args) {
        return add_pieces(this->core_.seek_likely(key), std::move(key), std::forward<Args>(args)...);
    }
    template <class... Args>
    iterator try_emplace(const_iterator hint, const key_type& key, Args&&... args) {
        return add_pieces(this->seek(hint, key), key, std::forward<Args>(args)...).first;
    }
    template <class... Args>
    iterator try_emplace(const_iterator hint, key_type&& key, Args&&... args) {
        return add_pieces(this->seek(hint, key), std::move(key), std::forward<Args>(args)...).first;
    }
    template <class M>
    std::pair<iterator, bool> insert_or_assign(const key_type& key, M&& mapped) {
        return add_or_assign(this->core_.seek_likely(key), key, std::forward<M>(mapped));
    }
    template <class M>
    std::pair<iterator, bool> insert_or_assign(key_type&& key, M&& mapped) {
        return add_or_assign(this->core_.seek_likely(key), std::move(key), std::forward<M>(mapped));
    }
    template <class M>
    iterator insert_or_assign(const_iterator hint, const key_type& key, M&& mapped) {
        return add_or_assign(this->seek(hint, key), key, std::forward<M>(mapped)).first;
    }
    template <class M>
    iterator insert_or_assign(const_iterator hint, key_type&& key, M&& mapped) {
        return add_or_assign(this->seek(hint, key), std::move(key), std::forward<M>(mapped)).first;
    }

    /// Throws std::out_of_range if there is no such key.
    [[nodiscard]] mapped_type& at(const key_type& key) { return existing(*this, key); }
    [[nodiscard]] const mapped_type& at(const key_type& key) const { return existing(*this, key); }
    mapped_type& operator[](const key_type& key) { return try_emplace(key).first->second; }
    mapped_type& operator[](key_type&& key) { return try_emplace(std::move(key)).first->second; }

private:
    using typename base::destination;

    template <class K, class... Args>
    std::pair<iterator, bool> add_pieces(const destination& found, K&& key, Args&&... args) {
        return this->add(found, std::piecewise_construct, std::forward_as_tuple(std::forward<K>(key)),
                         std::forward_as_tuple(std::forward<Args>(args)...));
    }
    template <class K, class M>
    std::pair<iterator, bool> add_or_assign(const destination& found, K&& key, M&& mapped) {
        if (found.there) {
            iterator(found.at)->second = std::forward<M>(mapped);
        }
        return this->add(found, std::forward<K>(key), std::forward<M>(mapped));
    }
    template <class Self>
    static auto& existing(Self& self, const key_type& key) {
        const auto there = self.find(key);
        if (there == self.end()) {
            detail::raise(std::out_of_range("varve: no such key"));
        }
        return there->second;
    }
};

}  // namespace varve
