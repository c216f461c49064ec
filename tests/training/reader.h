// The process that is handed the weights: it evaluates the model with them, and is killed.
#pragma once

namespace limbo::training {

// The role of the second process; by the first one it is told, and answers:
//
// | line                 | what the reader does                                | answer            |
// |----------------------|-----------------------------------------------------|-------------------|
// | weights STEP COUNT,  | receives them, puts them into its model, evaluates  | evaluated STEP    |
// | then COUNT messages  | it; keeps these weights and the last step's         | BITS              |
// | read on              | evaluates again and again, until it is killed       | reading           |
// | (the pipe's end)     | gives everything back and ends                      |                   |
inline constexpr char kReaderRole[] = "training_reader";

}  // namespace limbo::training
