"""The contract between questions and faces: questions, their options and their answers."""
