// A container of your own that says where its nodes go: a singly linked list of pairs of objects, allocated together on
// the page of their neighbour, and moved to local memory and back.
#include <iostream>
#include <string>
#include <varve/varve.hpp>

namespace {

struct text {
    char letters[48];
};
struct node {
    node* next;
    text* payload;
};

template <varve::collective_allocator_like Allocator>
class linked_texts {
public:
    explicit linked_texts(const Allocator& a) : memory_(a) {}
    linked_texts(const linked_texts&) = delete;
    linked_texts& operator=(const linked_texts&) = delete;
    ~linked_texts() {
        while (first_ != nullptr) {
            node* next = first_->next;
            texts(memory_).deallocate(first_->payload, 1);
            memory_.deallocate(first_, 1);
            first_ = next;
        }
    }

    void push_front(const std::string& s) {
        // Both objects or none, on the page of the node that they will point to if it has room.
        auto home = first_ == nullptr ? memory_.sub(varve::fresh_page) : memory_.sub(varve::owner_of{first_});
        auto storage = home.try_allocate_all(varve::request<node>{1}, varve::request<text>{1});
        if (!storage) {
            storage = memory_.sub(varve::fresh_page).try_allocate_all(varve::request<node>{1}, varve::request<text>{1});
        }
        if (!storage) {
            throw varve::out_of_room();
        }
        auto [n, t] = *storage;
        std::construct_at(t)->letters[s.copy(t->letters, sizeof(t->letters) - 1)] = '\0';
        first_ = std::construct_at(n, node{first_, t});
    }

    /// Moves the first node and its text; false if the target has no room.
    bool move_first_to(typename Allocator::sub_allocator_type target) {
        text* payload = first_->payload;
        const auto mover = [](auto from, auto to) {
            *std::get<0>(to) = *std::get<0>(from);
            *std::get<1>(to) = *std::get<1>(from);
        };
        if (!memory_.relocate(std::move(target), mover, std::tie(first_, payload), varve::request<node>{1},
                              varve::request<text>{1})) {
            return false;
        }
        first_->payload = payload;
        return true;
    }

    [[nodiscard]] const node* first() const { return first_; }

private:
    using texts = typename std::allocator_traits<Allocator>::template rebind_alloc<text>;

    Allocator memory_;
    node* first_ = nullptr;
};

}  // namespace

int main() {
    using namespace varve::literals;
    using allocator = varve::collective_allocator<node>;
    const allocator memory({16_KiB, 16_MiB});
    linked_texts<allocator> list(memory);
    for (int i = 0; i < 100; ++i) {
        list.push_front("text number " + std::to_string(i));
    }
    int crossings = 0;
    for (const node* n = list.first(); n->next != nullptr; n = n->next) {
        crossings += memory.same_page(n, n->next) ? 0 : 1;
    }
    std::cout << "100 nodes, " << crossings << " links that leave their page\n";
    std::cout << std::boolalpha << "moved to local memory: " << list.move_first_to(memory.sub(varve::purely_local))
              << ", " << list.first()->payload->letters << '\n';
}
