#pragma once

#include "model/blocks/block.h"

// Rows of which each rank computes some columns. Where there is one rank, all columns are its own and nothing is gathered.

namespace quire {

// The columns that a rank's rows of a product make (rows_of).
Rows own_rows_of_product(const Rows& rows, RankPlace place);
// The same of rows that become inputs once they are whole: until then they have no other form.
Activation own_columns_of_product(const Activation& rows, RankPlace place);

// Brings the others' columns, and makes of whole rows the forms that products read. `unit`: by what columns are divided.
void gather_activation(const BlockStep& step, const Activation& rows, size_t unit);
void gather_product(const BlockStep& step, const Activation& rows);
void gather_product(const BlockStep& step, const Rows& rows);

}  // namespace quire
