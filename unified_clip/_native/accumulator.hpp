// An exact sum of |x| or x^2, as one long integer. The order of the additions does not matter.
//
// The unit is 2^-2148, the square of the smallest float64 (`UNIT` of unified_clip/_core/exact.py). The integer is
// stored in limbs of 32 bits. Each limb is in an int64, which has room for carries.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

namespace clip {

constexpr int UNIT = 2148;
constexpr int LIMBS = 138;  // 4416 bits: the square of the largest float64 is below 2^4196, and 2^200 of them fit

inline std::uint64_t bits_of(double value) {
    std::uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

class Accumulator {
   public:
    bool nan = false;
    bool infinite = false;

    // Add sign * value * 2^(exponent - UNIT). `value` is below 2^56, and `exponent` is at least 0.
    void add(std::uint64_t value, int exponent, std::int64_t sign = 1) {
        const int limb = exponent >> 5, shift = exponent & 31;
        const std::uint64_t low = (value & 0xFFFFFFFF) << shift, high = (value >> 32) << shift;
        limbs_[limb] += sign * static_cast<std::int64_t>(low & 0xFFFFFFFF);
        limbs_[limb + 1] += sign * static_cast<std::int64_t>((low >> 32) + (high & 0xFFFFFFFF));
        limbs_[limb + 2] += sign * static_cast<std::int64_t>(high >> 32);
        if (++added_ == LIMIT) carry();
    }

    // NaN and infinity set the flags. The total must not be negative.
    void add(double value) {
        const std::uint64_t bits = bits_of(value);
        const int exponent = static_cast<int>(bits >> 52 & 0x7FF);
        const std::uint64_t fraction = bits & 0xFFFFFFFFFFFFF;
        const std::int64_t sign = bits >> 63 ? -1 : 1;
        if (exponent == 0x7FF) return add_special(fraction != 0);
        if (exponent == 0)
            add(fraction, UNIT - 1074, sign);
        else
            add(fraction | (std::uint64_t(1) << 52), UNIT - 1075 + exponent, sign);
    }

    void add_square(double value) {
        const std::uint64_t bits = bits_of(value) & 0x7FFFFFFFFFFFFFFF;
        int exponent = static_cast<int>(bits >> 52);
        std::uint64_t mantissa = bits & 0xFFFFFFFFFFFFF;
        if (exponent == 0x7FF) return add_special(mantissa != 0);
        if (bits == 0) return;
        if (exponent)
            mantissa |= std::uint64_t(1) << 52;
        else
            exponent = 1;
        const int unit = 2 * (exponent - 1);  // the square of the mantissa is in units of 2^(unit - UNIT)
        const std::uint64_t high = mantissa >> 27, low = mantissa & 0x7FFFFFF;
        add(low * low, unit);
        add(high * low, unit + 28);
        add(high * high, unit + 54);
    }

    void merge(const Accumulator& other) {
        carry();
        for (int limb = 0; limb < LIMBS; ++limb) limbs_[limb] += other.limbs_[limb];
        carry();
        nan |= other.nan;
        infinite |= other.infinite;
    }

    // The sum as fraction * 2^exponent, truncated to at least 64 bits. The fraction of 0 is 0. The exponent is even.
    struct Leading {
        double fraction;
        int exponent;
    };

    Leading leading() const {
        Accumulator sum = *this;
        sum.carry();
        int top = LIMBS - 1;
        while (top > 2 && !sum.limbs_[top]) --top;
        double fraction = 0;
        for (int limb = top; limb > top - 3; --limb)
            fraction = fraction * 0x1p32 + static_cast<double>(sum.limbs_[limb]);
        return {fraction, 32 * (top - 2) - UNIT};
    }

    // Return the sign of a - b. Both are at least 0.
    friend int compare(Accumulator a, Accumulator b) {
        a.carry();
        b.carry();
        for (int limb = LIMBS; limb-- > 0;)
            if (a.limbs_[limb] != b.limbs_[limb]) return a.limbs_[limb] > b.limbs_[limb] ? 1 : -1;
        return 0;
    }

    // Return the integer as little-endian bytes.
    std::string bytes() {
        carry();
        std::string text(4 * LIMBS, '\0');
        for (int limb = 0; limb < LIMBS; ++limb)
            for (int byte = 0; byte < 4; ++byte)
                text[4 * limb + byte] = static_cast<char>(limbs_[limb] >> (8 * byte) & 0xFF);
        return text;
    }

   private:
    void add_special(bool is_nan) { (is_nan ? nan : infinite) = true; }

    static constexpr std::int64_t LIMIT = std::int64_t(1) << 28;  // each addition adds less than 2^34 to a limb

    void carry() {
        std::int64_t over = 0;
        for (auto& limb : limbs_) {
            limb += over;
            over = limb >> 32;
            limb &= 0xFFFFFFFF;
        }
        added_ = 0;
    }

    std::array<std::int64_t, LIMBS> limbs_{};
    std::int64_t added_ = 0;
};

}  // namespace clip
